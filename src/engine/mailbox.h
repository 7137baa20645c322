// Objects handed from any thread to one that takes them. Posting is lock-free and takes constant
// time, so that a thread that must not wait (the engine's) can hand over what is slow to free.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

namespace lk {

class Mail {
 public:
  virtual ~Mail() = default;
  // Called by the taker, if it wishes, before the mail is freed.
  virtual void open() {}

 private:
  friend class Mailbox;
  Mail* next_ = nullptr;
};

class Mailbox {
 public:
  Mailbox() = default;
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // After close() the mail is freed at once, on this thread.
  void post(std::unique_ptr<Mail> mail);
  // Waits for mail and takes all of it, in the order of posting. Empty once the box is closed and
  // everything was taken. For one thread.
  std::vector<std::unique_ptr<Mail>> take();
  // What lies in the box can still be taken.
  void close();

 private:
  std::atomic<Mail*> newest_{nullptr};
  Mail* left_ = nullptr;  // what lay in the box when it was closed
};

}  // namespace lk
