// The objects a template can hold besides plain data: namespaces, ranges, dict views, iterators,
// functions. Each belongs to one rendering; functions and ranges are immutable.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace lk::jinja {

using NativeFunction = Value (*)(Runtime& rt, const CallArgs& args);
using Method = Value (*)(Runtime& rt, const Value& self, const CallArgs& args);

// namespace(...): attributes that {% set ns.name = … %} may change.
class Namespace : public Object {
 public:
  std::string type_name() const override { return "TemplateNamespace"; }
  std::string repr(Runtime& rt) const override;
  bool get_attribute(Runtime& rt, std::string_view name, Value* out) override;
  // Raises on a name that starts with an underscore.
  void set(std::string_view name, Value value);
  void clear() { attributes_.clear(); }

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
};

// An iterator: items are handed out once. Python computes them on demand; here they are computed
// when it is made.
class Generator : public Object {
 public:
  Generator(std::shared_ptr<const std::vector<Value>> items, std::string type = "generator");
  explicit Generator(std::vector<Value> items, std::string type = "generator");
  std::string type_name() const override { return type_; }
  bool is_iterable() const override { return true; }
  Generator* as_generator() override { return this; }
  std::vector<Value> list_items(Runtime& rt) const override;
  uint32_t depth() const override { return depth_; }
  // False when nothing is left.
  bool next(Value* out);

 private:
  std::shared_ptr<const std::vector<Value>> items_;
  mutable size_t at_ = 0;
  std::string type_;
  uint32_t depth_ = 1;
};

class Range : public Object {
 public:
  Range(int64_t start, int64_t stop, int64_t step);
  std::string type_name() const override { return "range"; }
  std::string repr(Runtime& rt) const override;
  bool is_iterable() const override { return true; }
  bool has_length() const override { return true; }
  bool is_sequence() const override { return true; }
  bool truthy(Runtime&) const override { return count_ > 0; }
  std::vector<Value> list_items(Runtime& rt) const override;
  int64_t count() const { return count_; }
  // The range of every `stride`th number from index `begin` until `end`.
  Value slice(int64_t begin, int64_t end, int64_t stride) const;

 private:
  int64_t start_, stop_, step_;
  int64_t count_;
};

// dict.keys(), dict.values(), dict.items().
class DictView : public Object {
 public:
  enum class Part { kKeys, kValues, kItems };
  DictView(Value dict, Part part) : dict_(std::move(dict)), part_(part) {}
  std::string type_name() const override;
  std::string repr(Runtime& rt) const override;
  bool is_iterable() const override { return true; }
  bool has_length() const override { return true; }
  bool truthy(Runtime&) const override { return !dict_.dict().entries().empty(); }
  std::vector<Value> list_items(Runtime& rt) const override;
  uint32_t depth() const override { return dict_.depth() + 2; }

 private:
  Value dict_;
  Part part_;
};

// A function of the environment; constant, shared by all renderings.
class Function : public Object {
 public:
  Function(std::string name, NativeFunction function)
      : name_(std::move(name)), function_(function) {}
  std::string type_name() const override { return "function"; }
  bool is_callable() const override { return true; }
  Value call(Runtime& rt, const CallArgs& args) override { return function_(rt, args); }

 private:
  std::string name_;
  NativeFunction function_;
};

// A method read as a value: {% set f = text.strip %}.
class BoundMethod : public Object {
 public:
  BoundMethod(Value self, Method method) : self_(std::move(self)), method_(method) {}
  std::string type_name() const override { return "builtin_function_or_method"; }
  bool is_callable() const override { return true; }
  Value call(Runtime& rt, const CallArgs& args) override { return method_(rt, self_, args); }
  uint32_t depth() const override { return self_.depth() + 1; }

 private:
  Value self_;
  Method method_;
};

// The methods of plain data, by name; null if the type has no such method. A method that would
// change its list or dict is a row that raises.
Method find_string_method(std::string_view name);
Method find_dict_method(std::string_view name);
Method find_sequence_method(std::string_view name);
Method find_method(const Value& self, std::string_view name);

// obj.name (attribute first, then item) and obj[key] (item first, then attribute) as the sandbox
// gives them.
Value get_attribute(Runtime& rt, const Value& object, std::string_view name);
Value get_item(Runtime& rt, const Value& object, const Value& key);
// Python's slice; an absent bound is none.
Value get_slice(Runtime& rt, const Value& object, const Value& start, const Value& stop,
                const Value& step);
std::string no_attribute_message(const Value& object, std::string_view name);

Value call_value(Runtime& rt, const Value& callee, const CallArgs& args);

// The items of any iterable; raises for others. Consumes an iterator.
std::vector<Value> list_of(Runtime& rt, const Value& value);
// An iterator over any iterable: the value itself if it is one.
std::shared_ptr<Generator> iterate(Runtime& rt, const Value& value);
bool is_iterable(const Value& value);
// len(); raises for values without one.
int64_t length_of(Runtime& rt, const Value& value);

// Arguments of a call sorted into parameters by position or name. Raises on unknown, doubled or
// missing ones.
class Arguments {
 public:
  Arguments(std::string_view function, const CallArgs& args,
            std::initializer_list<std::string_view> names, size_t required = 0);
  bool has(size_t i) const { return values_[i] != nullptr; }
  const Value& operator[](size_t i) const { return *values_[i]; }
  // The value or, if absent, the default. Raise on the wrong type.
  const std::string& text(size_t i, const std::string& fallback) const;
  int64_t integer(size_t i, int64_t fallback) const;
  bool flag(Runtime& rt, size_t i, bool fallback) const;
  bool is_given(size_t i) const { return has(i) && !values_[i]->is_none(); }

 private:
  std::string_view function_;
  std::vector<const Value*> values_;
};

// str.replace; a negative limit is none. Also for the filter.
std::string replace_text(Runtime& rt, std::string_view text, std::string_view wanted,
                         std::string_view with, int64_t limit);
// str.isupper and str.islower.
bool text_is_cased(Runtime& rt, std::string_view text, bool upper);

// A number as int(): raises "… cannot be interpreted as an integer" for anything but int and bool.
int64_t index_of(const Value& value);

}  // namespace lk::jinja
