// A template value with Python's meaning: immutable, except for objects such as a namespace. Copies
// share the payload. Thread-safe to read and copy; an Object that changes belongs to one rendering.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lk::jinja {

class Runtime;
class Object;
class Dict;
class Value;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kObject
};

// What an undefined value says when it is used.
struct UndefinedInfo {
  std::string message;
};

struct Sequence {
  std::vector<Value> items;
  uint32_t depth = 1;  // 1 + the deepest item
  bool group = false;  // groupby's pair: .grouper and .list name the items
};

class Value {
 public:
  Value() = default;  // "missing": a name without a value
  static Value undefined(std::shared_ptr<const UndefinedInfo> info);
  static Value undefined(std::string message);
  static Value none();
  static Value boolean(bool value);
  static Value integer(int64_t value);
  // Raises "integer out of range" outside [-2^63, 2^64).
  static Value wide_integer(__int128 value);
  static Value real(double value);
  // `safe` is Markup: text that has been through |safe or |escape.
  static Value string(std::string text, bool safe = false);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items, bool group = false);
  static Value dict(Dict dict);
  static Value object(std::shared_ptr<Object> object);

  Kind kind() const { return kind_; }
  bool is_missing() const { return kind_ == Kind::kUndefined && !ref_; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }
  bool is_safe() const { return kind_ == Kind::kString && flag_; }

  // Each is valid for its kind only.
  bool as_bool() const { return number_.i != 0; }
  __int128 as_wide() const {  // kInt, kBool
    return flag_ ? static_cast<__int128>(static_cast<uint64_t>(number_.i)) : number_.i;
  }
  double as_real() const {  // any number
    return kind_ == Kind::kFloat ? number_.d : static_cast<double>(as_wide());
  }
  const std::string& text() const { return *static_cast<const std::string*>(ref_.get()); }
  const Sequence& sequence() const { return *static_cast<const Sequence*>(ref_.get()); }
  const std::vector<Value>& items() const { return sequence().items; }
  std::shared_ptr<const std::vector<Value>> shared_items() const;
  const Dict& dict() const { return *static_cast<const Dict*>(ref_.get()); }
  Object& object() const;
  const UndefinedInfo& undefined_info() const {
    return *static_cast<const UndefinedInfo*>(ref_.get());
  }
  const void* address() const { return ref_.get(); }

  uint32_t depth() const;         // of nesting; 0 for scalars
  std::string type_name() const;  // Python's name of the type

 private:
  Kind kind_ = Kind::kUndefined;
  bool flag_ = false;  // kString: Markup; kInt: the number is unsigned (at least 2^63)
  union {
    int64_t i = 0;
    double d;
  } number_;
  std::shared_ptr<const void> ref_;
};

// An ordered dict with hashable keys. Built by set(), then shared as constant.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;
  void reserve(size_t count) { entries_.reserve(count); }
  // Raises on an unhashable key. A known key keeps its place.
  void set(Value key, Value value);
  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;  // raises on an unhashable key
  const std::vector<Entry>& entries() const { return entries_; }
  uint32_t depth() const { return depth_; }

 private:
  template <typename Same>
  size_t locate(size_t hash, const Same& same) const;  // entries_.size() if absent
  void index_last(size_t hash);

  std::vector<Entry> entries_;
  std::vector<size_t> hashes_;   // one per entry
  std::vector<uint32_t> table_;  // open addressing, entry + 1; empty while the dict is small
  uint32_t depth_ = 1;
};

struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Everything that is no plain data. The defaults are an object with no attributes that cannot be
// called.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  virtual std::string repr(Runtime& rt) const;
  // False if there is no such attribute.
  virtual bool get_attribute(Runtime& rt, std::string_view name, Value* out);
  virtual bool is_callable() const { return false; }
  virtual Value call(Runtime& rt, const CallArgs& args);
  virtual bool is_iterable() const { return false; }
  // Items that are left, consumed together; null if the object is no iterator.
  virtual class Generator* as_generator() { return nullptr; }
  virtual std::vector<Value> list_items(Runtime& rt) const;
  virtual bool has_length() const { return false; }
  // Sequences (range) can be subscripted.
  virtual bool is_sequence() const { return false; }
  virtual bool truthy(Runtime& rt) const;
  virtual uint32_t depth() const { return 1; }
};

bool truthy(Runtime& rt, const Value& value);
bool equal(Runtime& rt, const Value& a, const Value& b);
// `a < b` as Python orders them; raises TypeError's sentence naming `op` for kinds that have no
// order.
bool less(Runtime& rt, const Value& a, const Value& b, std::string_view op = "<");
bool contains(Runtime& rt, const Value& container, const Value& item);
size_t hash_of(const Value& value);

}  // namespace lk::jinja
