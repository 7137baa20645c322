#include "text/jinja/value.h"

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <limits>

#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace lk::jinja {
namespace {

constexpr size_t kSmallDict = 8;  // searched one by one up to here

uint32_t checked_depth(uint32_t depth) {
  if (depth > kMaxValueDepth)
    raise_error(fmt::format("a value nests deeper than {} levels", kMaxValueDepth));
  return depth;
}

}  // namespace

Value Value::undefined(std::shared_ptr<const UndefinedInfo> info) {
  Value v;
  v.ref_ = std::move(info);
  return v;
}

Value Value::undefined(std::string message) {
  return undefined(std::make_shared<const UndefinedInfo>(UndefinedInfo{std::move(message)}));
}

Value Value::none() {
  Value v;
  v.kind_ = Kind::kNone;
  return v;
}

Value Value::boolean(bool value) {
  Value v;
  v.kind_ = Kind::kBool;
  v.number_.i = value ? 1 : 0;
  return v;
}

Value Value::integer(int64_t value) {
  Value v;
  v.kind_ = Kind::kInt;
  v.number_.i = value;
  return v;
}

Value Value::wide_integer(__int128 value) {
  if (value < std::numeric_limits<int64_t>::min() || value > std::numeric_limits<uint64_t>::max()) {
    raise_error("integer out of range (64 bits)");
  }
  Value v = integer(static_cast<int64_t>(value));
  v.flag_ = value > std::numeric_limits<int64_t>::max();
  return v;
}

Value Value::real(double value) {
  Value v;
  v.kind_ = Kind::kFloat;
  v.number_.d = value;
  return v;
}

Value Value::string(std::string text, bool safe) {
  Value v;
  v.kind_ = Kind::kString;
  v.flag_ = safe;
  v.ref_ = std::make_shared<const std::string>(std::move(text));
  return v;
}

Value Value::list(std::vector<Value> items) {
  Value v = tuple(std::move(items));
  v.kind_ = Kind::kList;
  return v;
}

Value Value::tuple(std::vector<Value> items, bool group) {
  auto sequence = std::make_shared<Sequence>();
  for (const Value& item : items) sequence->depth = std::max(sequence->depth, item.depth() + 1);
  checked_depth(sequence->depth);
  sequence->items = std::move(items);
  sequence->group = group;
  Value v;
  v.kind_ = Kind::kTuple;
  v.ref_ = std::move(sequence);
  return v;
}

Value Value::dict(Dict dict) {
  checked_depth(dict.depth());
  Value v;
  v.kind_ = Kind::kDict;
  v.ref_ = std::make_shared<const Dict>(std::move(dict));
  return v;
}

Value Value::object(std::shared_ptr<Object> object) {
  checked_depth(object->depth());
  Value v;
  v.kind_ = Kind::kObject;
  v.ref_ = std::move(object);
  return v;
}

std::shared_ptr<const std::vector<Value>> Value::shared_items() const {
  return {ref_, &sequence().items};
}

Object& Value::object() const {
  // Objects are made mutable and only stored as const; see Value::object(shared_ptr<Object>).
  return *const_cast<Object*>(static_cast<const Object*>(ref_.get()));
}

uint32_t Value::depth() const {
  switch (kind_) {
    case Kind::kList:
    case Kind::kTuple:
      return sequence().depth;
    case Kind::kDict:
      return dict().depth();
    case Kind::kObject:
      return object().depth();
    default:
      return 0;
  }
}

std::string Value::type_name() const {
  switch (kind_) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return flag_ ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kObject:
      return object().type_name();
  }
  return "object";
}

size_t hash_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kBool:
    case Kind::kInt:
      return std::hash<double>{}(value.as_real());  // 1, 1.0 and True are one key
    case Kind::kFloat:
      return std::hash<double>{}(value.as_real());
    case Kind::kString:
      return std::hash<std::string_view>{}(value.text());
    case Kind::kTuple: {
      size_t hash = 0x9e3779b97f4a7c15u;
      for (const Value& item : value.items()) hash = (hash ^ hash_of(item)) * 0x100000001b3u;
      return hash;
    }
    case Kind::kList:
    case Kind::kDict:
      raise_error(fmt::format("unhashable type: '{}'", value.type_name()));
    case Kind::kObject:
      return std::hash<const void*>{}(value.address());
    case Kind::kNone:
    case Kind::kUndefined:
      break;
  }
  return static_cast<size_t>(value.kind());
}

namespace {

// Equality of two hashable values: no budget is needed, for they hold no lists.
bool same_key(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_wide() == b.as_wide();
    return a.as_real() == b.as_real();
  }
  if (a.kind() != b.kind()) return false;
  if (a.is_string()) return a.text() == b.text();
  if (a.kind() == Kind::kTuple) {
    if (a.items().size() != b.items().size()) return false;
    for (size_t i = 0; i < a.items().size(); ++i) {
      if (!same_key(a.items()[i], b.items()[i])) return false;
    }
    return true;
  }
  return a.kind() != Kind::kObject || a.address() == b.address();
}

}  // namespace

template <typename Same>
size_t Dict::locate(size_t hash, const Same& same) const {
  if (table_.empty()) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (hashes_[i] == hash && same(entries_[i].first)) return i;
    }
    return entries_.size();
  }
  const size_t mask = table_.size() - 1;
  for (size_t at = hash & mask; table_[at] != 0; at = (at + 1) & mask) {
    const size_t i = table_[at] - 1;
    if (hashes_[i] == hash && same(entries_[i].first)) return i;
  }
  return entries_.size();
}

void Dict::index_last(size_t hash) {
  if (entries_.size() <= kSmallDict) return;
  const auto put = [this](size_t entry, size_t entry_hash) {
    const size_t mask = table_.size() - 1;
    size_t at = entry_hash & mask;
    while (table_[at] != 0) at = (at + 1) & mask;
    table_[at] = static_cast<uint32_t>(entry + 1);
  };
  if (table_.size() < entries_.size() * 2) {
    table_.assign(table_.empty() ? 4 * kSmallDict : table_.size() * 2, 0);
    for (size_t i = 0; i < entries_.size(); ++i) put(i, hashes_[i]);
  } else {
    put(entries_.size() - 1, hash);
  }
}

void Dict::set(Value key, Value value) {
  const size_t hash = hash_of(key);
  depth_ = std::max({depth_, key.depth() + 1, value.depth() + 1});
  const size_t at = locate(hash, [&](const Value& other) { return same_key(key, other); });
  if (at < entries_.size()) {
    entries_[at].second = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  hashes_.push_back(hash);
  index_last(hash);
}

const Value* Dict::find(std::string_view key) const {
  const size_t at = locate(std::hash<std::string_view>{}(key), [&](const Value& other) {
    return other.is_string() && other.text() == key;
  });
  return at < entries_.size() ? &entries_[at].second : nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(std::string_view(key.text()));
  const size_t at = locate(hash_of(key), [&](const Value& other) { return same_key(key, other); });
  return at < entries_.size() ? &entries_[at].second : nullptr;
}

std::string Object::repr(Runtime&) const { return fmt::format("<{}>", type_name()); }
bool Object::get_attribute(Runtime&, std::string_view, Value*) { return false; }
Value Object::call(Runtime&, const CallArgs&) {
  raise_error(fmt::format("'{}' object is not callable", type_name()));
}
std::vector<Value> Object::list_items(Runtime&) const {
  raise_error(fmt::format("'{}' object is not iterable", type_name()));
}
bool Object::truthy(Runtime&) const { return true; }

bool truthy(Runtime& rt, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_wide() != 0;
    case Kind::kFloat:
      return value.as_real() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return !value.dict().entries().empty();
    case Kind::kObject:
      return value.object().truthy(rt);
  }
  return false;
}

bool equal(Runtime& rt, const Value& a, const Value& b) {
  rt.charge(1);
  if (a.is_number() || b.is_number()) return a.is_number() && b.is_number() && same_key(a, b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kString:
      if (a.text().size() != b.text().size()) return false;
      rt.charge(static_cast<int64_t>(a.text().size() / 64));
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple: {
      if (a.address() == b.address()) return true;
      if (a.items().size() != b.items().size()) return false;
      for (size_t i = 0; i < a.items().size(); ++i) {
        if (!equal(rt, a.items()[i], b.items()[i])) return false;
      }
      return true;
    }
    case Kind::kDict: {
      if (a.address() == b.address()) return true;
      if (a.dict().entries().size() != b.dict().entries().size()) return false;
      for (const auto& [key, value] : a.dict().entries()) {
        const Value* other = b.dict().find(key);
        if (other == nullptr || !equal(rt, value, *other)) return false;
      }
      return true;
    }
    case Kind::kObject:
      return a.address() == b.address();
    default:
      return true;
  }
}

bool less(Runtime& rt, const Value& a, const Value& b, std::string_view op) {
  rt.charge(1);
  for (const Value* v : {&a, &b}) {
    if (v->is_missing()) raise_error("undefined value in a comparison");
    if (v->is_undefined()) raise_error(v->undefined_info().message);
  }
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_wide() < b.as_wide();
    return a.as_real() < b.as_real();
  }
  if (a.is_string() && b.is_string()) {
    rt.charge(static_cast<int64_t>(std::min(a.text().size(), b.text().size()) / 64));
    return a.text() < b.text();  // UTF-8 order is code point order
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    const size_t common = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < common; ++i) {
      if (!equal(rt, a.items()[i], b.items()[i])) return less(rt, a.items()[i], b.items()[i], op);
    }
    return a.items().size() < b.items().size();
  }
  raise_error(fmt::format("'{}' not supported between instances of '{}' and '{}'", op,
                          a.type_name(), b.type_name()));
}

bool contains(Runtime& rt, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) {
        raise_error(
            fmt::format("'in <string>' requires string as left operand, not {}", item.type_name()));
      }
      rt.charge_bytes(container.text().size());
      return find_text(container.text(), item.text()) != std::string::npos;
    case Kind::kDict:
      return container.dict().find(item) != nullptr;
    case Kind::kUndefined:
      return false;
    case Kind::kList:
    case Kind::kTuple:
      for (const Value& other : container.items()) {
        if (equal(rt, item, other)) return true;
      }
      return false;
    case Kind::kObject:
      if (container.object().is_iterable()) {
        for (const Value& other : container.object().list_items(rt)) {
          if (equal(rt, item, other)) return true;
        }
        return false;
      }
      [[fallthrough]];
    default:
      raise_error(fmt::format("argument of type '{}' is not iterable", container.type_name()));
  }
}

}  // namespace lk::jinja
