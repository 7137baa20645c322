#include "text/jinja/objects.h"

#include <fmt/format.h>

#include <limits>

#include "text/jinja/print.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace lk::jinja {
namespace {

std::string type_repr(const Value& object) {
  switch (object.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kString:
      return object.is_safe() ? "markupsafe.Markup object" : "str object";
    default:
      return object.type_name() + " object";
  }
}

// ASCII is counted many bytes at once, other text letter by letter.
void charge_code_points(Runtime& rt, std::string_view text) {
  rt.charge_bytes(text.size());
  if (!is_ascii(text)) rt.charge(static_cast<int64_t>(text.size() / 4));
}

uint32_t depth_of_items(const std::vector<Value>& items) {
  uint32_t depth = 1;
  for (const Value& item : items) depth = std::max(depth, item.depth() + 1);
  return depth;
}

// Where an index from the end or beyond lands, as Python clips slice bounds.
int64_t clip(const Value& bound, int64_t length, int64_t low, int64_t high, int64_t fallback) {
  if (bound.is_none()) return fallback;
  if (!bound.is_integral()) {
    raise_error("slice indices must be integers or None or have an __index__ method");
  }
  const __int128 value = bound.as_wide() < 0 ? bound.as_wide() + length : bound.as_wide();
  if (value < low) return low;
  return value > high ? high : static_cast<int64_t>(value);
}

Value item_at(Runtime& rt, const Value& object, __int128 index, bool* found) {
  const auto pick = [&](size_t size) {
    if (index < 0) index += static_cast<__int128>(size);
    *found = index >= 0 && index < static_cast<__int128>(size);
    return static_cast<size_t>(*found ? index : 0);
  };
  if (object.is_sequence()) {
    const size_t i = pick(object.items().size());
    return *found ? object.items()[i] : Value();
  }
  if (object.is_string()) {
    const std::string& text = object.text();
    charge_code_points(rt, text);
    const size_t i = pick(code_point_count(text));
    if (!*found) return Value();
    const size_t begin = byte_offset(text, i);
    return Value::string(text.substr(begin, code_point_bytes(text, begin)), object.is_safe());
  }
  const std::vector<Value> items = object.object().list_items(rt);
  const size_t i = pick(items.size());
  return *found ? items[i] : Value();
}

const Range* as_range(const Value& value) {
  return value.kind() == Kind::kObject ? dynamic_cast<const Range*>(&value.object()) : nullptr;
}

bool is_subscriptable(const Value& value) {
  return value.is_sequence() || value.is_string() ||
         (value.kind() == Kind::kObject && value.object().is_sequence());
}

// An attribute in Python's sense: a method or an object's own attribute.
bool own_attribute(Runtime& rt, const Value& object, std::string_view name, Value* out) {
  if (object.kind() == Kind::kObject) return object.object().get_attribute(rt, name, out);
  if (const Method method = find_method(object, name)) {
    *out = Value::object(std::make_shared<BoundMethod>(object, method));
    return true;
  }
  if (object.kind() == Kind::kTuple && object.sequence().group) {
    if (name == "grouper" || name == "list") {
      *out = object.items()[name == "list" ? 1 : 0];
      return true;
    }
  }
  return false;
}

}  // namespace

std::string Namespace::repr(Runtime& rt) const {
  std::string out = "<Namespace {";
  const char* separator = "";
  for (const auto& [name, value] : attributes_) {
    out += std::exchange(separator, ", ") + string_repr(name) + ": " + to_repr(rt, value);
    rt.check_string(out.size());
  }
  return out + "}>";
}

bool Namespace::get_attribute(Runtime&, std::string_view name, Value* out) {
  for (const auto& [key, value] : attributes_) {
    if (key == name) {
      *out = value;
      return true;
    }
  }
  return false;
}

void Namespace::set(std::string_view name, Value value) {
  if (!name.empty() && name.front() == '_') {
    raise_error(fmt::format(
        "Chat templates cannot store underscore-prefixed attributes on a namespace, but got {}. "
        "Please rename the attribute.",
        string_repr(name)));
  }
  for (auto& [key, old] : attributes_) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  attributes_.emplace_back(name, std::move(value));
}

Generator::Generator(std::shared_ptr<const std::vector<Value>> items, std::string type)
    : items_(std::move(items)), type_(std::move(type)), depth_(depth_of_items(*items_)) {}

Generator::Generator(std::vector<Value> items, std::string type)
    : Generator(std::make_shared<const std::vector<Value>>(std::move(items)), std::move(type)) {}

bool Generator::next(Value* out) {
  if (at_ >= items_->size()) return false;
  *out = (*items_)[at_++];
  return true;
}

std::vector<Value> Generator::list_items(Runtime& rt) const {
  rt.charge(static_cast<int64_t>(items_->size() - at_));
  std::vector<Value> rest(items_->begin() + static_cast<std::ptrdiff_t>(at_), items_->end());
  at_ = items_->size();
  return rest;
}

Range::Range(int64_t start, int64_t stop, int64_t step) : start_(start), stop_(stop), step_(step) {
  if (step == 0) raise_error("range() arg 3 must not be zero");
  const __int128 span =
      step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 stride = step > 0 ? step : -static_cast<__int128>(step);
  const __int128 count = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (count > kMaxRange) {
    raise_error(fmt::format("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).",
                            kMaxRange));
  }
  count_ = static_cast<int64_t>(count);
}

Value Range::slice(int64_t begin, int64_t end, int64_t stride) const {
  const auto number = [this](__int128 index) {
    const __int128 value = start_ + index * step_;
    if (value < std::numeric_limits<int64_t>::min() ||
        value > std::numeric_limits<int64_t>::max()) {
      raise_error("integer out of range (64 bits)");
    }
    return static_cast<int64_t>(value);
  };
  const __int128 step = static_cast<__int128>(step_) * stride;
  if (step < std::numeric_limits<int64_t>::min() || step > std::numeric_limits<int64_t>::max()) {
    raise_error("integer out of range (64 bits)");
  }
  return Value::object(
      std::make_shared<Range>(number(begin), number(end), static_cast<int64_t>(step)));
}

std::string Range::repr(Runtime&) const {
  return step_ == 1 ? fmt::format("range({}, {})", start_, stop_)
                    : fmt::format("range({}, {}, {})", start_, stop_, step_);
}

std::vector<Value> Range::list_items(Runtime& rt) const {
  rt.charge(count_);
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(count_));
  for (int64_t i = 0; i < count_; ++i) items.push_back(Value::integer(start_ + i * step_));
  return items;
}

std::string DictView::type_name() const {
  return part_ == Part::kKeys ? "dict_keys" : part_ == Part::kValues ? "dict_values" : "dict_items";
}

std::string DictView::repr(Runtime& rt) const {
  return type_name() + "(" + to_repr(rt, Value::list(list_items(rt))) + ")";
}

std::vector<Value> DictView::list_items(Runtime& rt) const {
  const auto& entries = dict_.dict().entries();
  rt.charge(static_cast<int64_t>(entries.size()));
  std::vector<Value> items;
  items.reserve(entries.size());
  for (const auto& [key, value] : entries) {
    if (part_ == Part::kItems) {
      items.push_back(Value::tuple({key, value}));
    } else {
      items.push_back(part_ == Part::kKeys ? key : value);
    }
  }
  return items;
}

Method find_method(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::kString:
      return find_string_method(name);
    case Kind::kDict:
      return find_dict_method(name);
    case Kind::kList:
    case Kind::kTuple: {
      // A tuple has only the two methods that look.
      if (self.kind() == Kind::kTuple && name != "count" && name != "index") return nullptr;
      return find_sequence_method(name);
    }
    default:
      return nullptr;
  }
}

std::string no_attribute_message(const Value& object, std::string_view name) {
  return fmt::format("{} has no attribute {}", string_repr(type_repr(object)), string_repr(name));
}

Value get_attribute(Runtime& rt, const Value& object, std::string_view name) {
  if (object.is_undefined())
    raise_error(object.is_missing() ? "value is undefined" : object.undefined_info().message);
  Value out;
  if (own_attribute(rt, object, name, &out)) return out;
  if (object.is_dict()) {
    if (const Value* found = object.dict().find(name)) return *found;
  }
  return Value::undefined(no_attribute_message(object, name));
}

Value get_item(Runtime& rt, const Value& object, const Value& key) {
  if (object.is_undefined())
    raise_error(object.is_missing() ? "value is undefined" : object.undefined_info().message);
  if (object.is_dict()) {
    const bool hashable = key.kind() != Kind::kList && key.kind() != Kind::kDict;
    if (hashable) {
      if (const Value* found = object.dict().find(key)) return *found;
    }
  } else if (key.is_integral() && is_subscriptable(object)) {
    bool found = false;
    Value item = item_at(rt, object, key.as_wide(), &found);
    if (found) return item;
  }
  if (key.is_string()) {
    Value out;
    if (own_attribute(rt, object, key.text(), &out)) return out;
    return Value::undefined(no_attribute_message(object, key.text()));
  }
  return Value::undefined(fmt::format("{} has no element {}", type_repr(object), to_repr(rt, key)));
}

Value get_slice(Runtime& rt, const Value& object, const Value& start, const Value& stop,
                const Value& step) {
  if (object.is_undefined())
    raise_error(object.is_missing() ? "value is undefined" : object.undefined_info().message);
  if (!is_subscriptable(object)) {
    raise_error(fmt::format("'{}' object is not subscriptable", object.type_name()));
  }
  if (!step.is_none() && (!step.is_integral() || step.as_wide() == 0)) {
    raise_error(step.is_integral()
                    ? "slice step cannot be zero"
                    : "slice indices must be integers or None or have an __index__ method");
  }
  // A stride longer than any text is as good as the longest.
  constexpr int64_t kFar = int64_t{1} << 40;
  const int64_t stride = step.is_none() ? 1 : clip(step, 0, -kFar, kFar, 1);
  std::vector<std::string_view> letters;
  std::vector<Value> made;
  const std::vector<Value>* items = nullptr;
  int64_t length = 0;
  const bool ascii = object.is_string() && is_ascii(object.text());
  if (object.is_string()) {
    rt.charge_bytes(object.text().size());
    if (!ascii) {
      rt.charge(static_cast<int64_t>(object.text().size()));
      letters = code_points(object.text());
    }
    length = static_cast<int64_t>(ascii ? object.text().size() : letters.size());
  } else {
    if (object.kind() == Kind::kObject) made = object.object().list_items(rt);
    items = object.is_sequence() ? &object.items() : &made;
    length = static_cast<int64_t>(items->size());
  }
  const int64_t low = stride > 0 ? 0 : -1;
  const int64_t high = stride > 0 ? length : length - 1;
  const int64_t begin = clip(start, length, low, high, stride > 0 ? low : high);
  const int64_t end = clip(stop, length, low, high, stride > 0 ? high : low);
  if (object.is_string()) {
    std::string out;
    if (ascii && stride == 1) {
      if (end > begin)
        out = object.text().substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    } else {
      for (int64_t i = begin; stride > 0 ? i < end : i > end; i += stride) {
        const auto at = static_cast<size_t>(i);
        if (ascii) {
          out += object.text()[at];
        } else {
          out += letters[at];
        }
      }
    }
    return Value::string(std::move(out), object.is_safe());
  }
  if (const Range* range = as_range(object)) return range->slice(begin, end, stride);
  std::vector<Value> out;
  for (int64_t i = begin; stride > 0 ? i < end : i > end; i += stride) {
    out.push_back((*items)[static_cast<size_t>(i)]);
  }
  rt.charge(static_cast<int64_t>(out.size()));
  return object.kind() == Kind::kTuple ? Value::tuple(std::move(out)) : Value::list(std::move(out));
}

Value call_value(Runtime& rt, const Value& callee, const CallArgs& args) {
  if (callee.is_undefined())
    raise_error(callee.is_missing() ? "value is undefined" : callee.undefined_info().message);
  if (callee.kind() != Kind::kObject) {
    raise_error(fmt::format("'{}' object is not callable", callee.type_name()));
  }
  Runtime::Deeper deeper(rt);
  return callee.object().call(rt, args);
}

std::vector<Value> list_of(Runtime& rt, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return {};
    case Kind::kList:
    case Kind::kTuple:
      rt.charge(static_cast<int64_t>(value.items().size()));
      return value.items();
    case Kind::kString: {
      std::vector<Value> letters;
      rt.charge(4 * static_cast<int64_t>(value.text().size()));
      for (const std::string_view c : code_points(value.text()))
        letters.push_back(Value::string(std::string(c)));
      return letters;
    }
    case Kind::kDict: {
      std::vector<Value> keys;
      rt.charge(static_cast<int64_t>(value.dict().entries().size()));
      for (const auto& [key, item] : value.dict().entries()) keys.push_back(key);
      return keys;
    }
    case Kind::kObject:
      return value.object().list_items(rt);
    default:
      raise_error(fmt::format("'{}' object is not iterable", value.type_name()));
  }
}

std::shared_ptr<Generator> iterate(Runtime& rt, const Value& value) {
  if (value.is_sequence()) return std::make_shared<Generator>(value.shared_items());
  if (value.kind() == Kind::kObject) {
    // The iterator must be shared, and a value shares its object: go through an aliasing pointer.
    if (Generator* generator = value.object().as_generator()) {
      auto keep = std::make_shared<Value>(value);
      return {keep, generator};
    }
  }
  return std::make_shared<Generator>(list_of(rt, value));
}

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
      return true;
    case Kind::kObject:
      return value.object().is_iterable();
    default:
      return false;
  }
}

int64_t length_of(Runtime& rt, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      charge_code_points(rt, value.text());
      return static_cast<int64_t>(code_point_count(value.text()));
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().entries().size());
    case Kind::kObject:
      if (value.object().has_length())
        return static_cast<int64_t>(value.object().list_items(rt).size());
      [[fallthrough]];
    default:
      raise_error(fmt::format("object of type '{}' has no len()", value.type_name()));
  }
}

Arguments::Arguments(std::string_view function, const CallArgs& args,
                     std::initializer_list<std::string_view> names, size_t required)
    : function_(function), values_(names.size(), nullptr) {
  if (args.positional.size() > names.size()) {
    raise_error(fmt::format("{}() takes at most {} arguments ({} given)", function, names.size(),
                            args.positional.size()));
  }
  for (size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    size_t i = 0;
    while (i < names.size() && names.begin()[i] != name) ++i;
    if (i == names.size()) {
      raise_error(fmt::format("{}() got an unexpected keyword argument '{}'", function, name));
    }
    if (values_[i] != nullptr)
      raise_error(fmt::format("{}() got multiple values for argument '{}'", function, name));
    values_[i] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) {
      raise_error(fmt::format("{}() missing required argument '{}'", function, names.begin()[i]));
    }
  }
}

const std::string& Arguments::text(size_t i, const std::string& fallback) const {
  if (!has(i)) return fallback;
  if (!values_[i]->is_string()) {
    raise_error(fmt::format("{}() argument {} must be str, not {}", function_, i + 1,
                            values_[i]->type_name()));
  }
  return values_[i]->text();
}

int64_t Arguments::integer(size_t i, int64_t fallback) const {
  return has(i) ? index_of(*values_[i]) : fallback;
}

bool Arguments::flag(Runtime& rt, size_t i, bool fallback) const {
  return has(i) ? truthy(rt, *values_[i]) : fallback;
}

int64_t index_of(const Value& value) {
  if (!value.is_integral()) {
    raise_error(fmt::format("'{}' object cannot be interpreted as an integer", value.type_name()));
  }
  if (value.as_wide() > std::numeric_limits<int64_t>::max())
    raise_error("integer out of range (64 bits)");
  return static_cast<int64_t>(value.as_wide());
}

}  // namespace lk::jinja
