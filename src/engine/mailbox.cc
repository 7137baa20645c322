#include "engine/mailbox.h"

#include <algorithm>
#include <utility>

namespace lk {
namespace {

// Stands in the box once it is closed.
Mail closed_mark;

}  // namespace

Mailbox::~Mailbox() {
  close();
  take();
}

void Mailbox::post(std::unique_ptr<Mail> mail) {
  Mail* newest = newest_.load(std::memory_order_relaxed);
  do {
    if (newest == &closed_mark) return;
    mail->next_ = newest;
  } while (!newest_.compare_exchange_weak(newest, mail.get(), std::memory_order_release,
                                          std::memory_order_relaxed));
  mail.release();
  if (newest == nullptr) newest_.notify_one();
}

std::vector<std::unique_ptr<Mail>> Mailbox::take() {
  newest_.wait(nullptr, std::memory_order_acquire);
  Mail* list = newest_.load(std::memory_order_acquire);
  while (list != &closed_mark && !newest_.compare_exchange_weak(list, nullptr)) {
  }
  if (list == &closed_mark) list = std::exchange(left_, nullptr);
  std::vector<std::unique_ptr<Mail>> mail;
  while (list) {
    mail.emplace_back(list);
    list = list->next_;
  }
  std::reverse(mail.begin(), mail.end());
  return mail;
}

void Mailbox::close() {
  Mail* list = newest_.load(std::memory_order_relaxed);
  do {
    if (list == &closed_mark) return;
    left_ = list;
  } while (!newest_.compare_exchange_weak(list, &closed_mark, std::memory_order_acq_rel));
  newest_.notify_one();
}

}  // namespace lk
