#include "text/jinja/globals.h"

#include <fmt/format.h>

#include <unordered_map>

#include "text/jinja/format.h"
#include "text/jinja/objects.h"
#include "text/jinja/print.h"
#include "text/jinja/runtime.h"

namespace lk::jinja {
namespace {

Value range(Runtime&, const CallArgs& args) {
  if (!args.named.empty()) raise_error("range() takes no keyword arguments");
  const auto& given = args.positional;
  if (given.empty()) raise_error("range expected at least 1 argument, got 0");
  if (given.size() > 3)
    raise_error(fmt::format("range expected at most 3 arguments, got {}", given.size()));
  const int64_t first = index_of(given[0]);
  if (given.size() == 1) return Value::object(std::make_shared<Range>(0, first, 1));
  const int64_t step = given.size() == 3 ? index_of(given[2]) : 1;
  return Value::object(std::make_shared<Range>(first, index_of(given[1]), step));
}

// dict(mapping or pairs, name=value, …)
Dict make_dict(Runtime& rt, std::string_view function, const CallArgs& args) {
  if (args.positional.size() > 1) {
    raise_error(
        fmt::format("{} expected at most 1 argument, got {}", function, args.positional.size()));
  }
  Dict dict;
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is_dict()) {
      rt.charge(static_cast<int64_t>(from.dict().entries().size()));
      dict = from.dict();
    } else {
      for (const Value& pair : list_of(rt, from)) {
        const std::vector<Value> items = list_of(rt, pair);
        if (items.size() != 2) {
          raise_error(fmt::format("dictionary update sequence element has length {}; 2 is required",
                                  items.size()));
        }
        dict.set(items[0], items[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) dict.set(Value::string(name), value);
  return dict;
}

// The environment's `dict`: callable, and dict.fromkeys(names, value).
class DictType : public Object {
 public:
  std::string type_name() const override { return "TemplateDict"; }
  bool is_callable() const override { return true; }
  Value call(Runtime& rt, const CallArgs& args) override {
    return Value::dict(make_dict(rt, "dict", args));
  }
  bool get_attribute(Runtime&, std::string_view name, Value* out) override {
    if (name != "fromkeys") return false;
    *out = Value::object(std::make_shared<Function>("fromkeys", &from_keys));
    return true;
  }

 private:
  static Value from_keys(Runtime& rt, const CallArgs& args) {
    const Arguments a("fromkeys", args, {"iterable", "value"}, 1);
    Dict dict;
    for (Value& key : list_of(rt, a[0])) dict.set(std::move(key), a.has(1) ? a[1] : Value::none());
    return Value::dict(std::move(dict));
  }
};

Value make_namespace(Runtime& rt, const CallArgs& args) {
  auto space = std::make_shared<Namespace>();
  const Dict attributes = make_dict(rt, "namespace", args);
  for (const auto& [key, value] : attributes.entries()) {
    if (!key.is_string()) raise_error("a namespace's attributes are named by strings");
    space->set(key.text(), value);
  }
  rt.own(space);
  return Value::object(std::move(space));
}

// cycler(a, b, …): .next(), .current, .reset()
class Cycler : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  explicit Cycler(std::vector<Value> items) : items_(Value::tuple(std::move(items))) {}
  std::string type_name() const override { return "Cycler"; }
  uint32_t depth() const override { return items_.depth() + 1; }
  bool get_attribute(Runtime&, std::string_view name, Value* out) override {
    if (name == "current") {
      *out = items_.items()[at_];
    } else if (name == "items") {
      *out = items_;
    } else if (name == "pos") {
      *out = Value::integer(static_cast<int64_t>(at_));
    } else if (name == "next" || name == "reset") {
      *out = Value::object(std::make_shared<Step>(shared_from_this(), name == "next"));
    } else {
      return false;
    }
    return true;
  }

 private:
  class Step : public Object {
   public:
    Step(std::shared_ptr<Cycler> cycler, bool forward)
        : cycler_(std::move(cycler)), forward_(forward) {}
    std::string type_name() const override { return "method"; }
    bool is_callable() const override { return true; }
    uint32_t depth() const override { return cycler_->depth() + 1; }
    Value call(Runtime&, const CallArgs& args) override {
      const Arguments a("next", args, {});
      const auto& items = cycler_->items_.items();
      if (!forward_) {
        cycler_->at_ = 0;
        return Value::none();
      }
      Value current = items[cycler_->at_];
      cycler_->at_ = (cycler_->at_ + 1) % items.size();
      return current;
    }

   private:
    std::shared_ptr<Cycler> cycler_;
    bool forward_;
  };

  Value items_;
  size_t at_ = 0;
};

Value make_cycler(Runtime&, const CallArgs& args) {
  if (args.positional.empty()) raise_error("at least one item has to be provided");
  return Value::object(std::make_shared<Cycler>(args.positional));
}

// joiner(separator): empty the first time it is called.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string type_name() const override { return "Joiner"; }
  bool is_callable() const override { return true; }
  uint32_t depth() const override { return separator_.depth() + 1; }
  Value call(Runtime&, const CallArgs& args) override {
    const Arguments a("joiner", args, {});
    return std::exchange(used_, true) ? separator_ : Value::string("");
  }

 private:
  Value separator_;
  bool used_ = false;
};

Value make_joiner(Runtime&, const CallArgs& args) {
  const Arguments a("joiner", args, {"sep"});
  return Value::object(std::make_shared<Joiner>(a.has(0) ? a[0] : Value::string(", ")));
}

Value raise_exception(Runtime& rt, const CallArgs& args) {
  const Arguments a("raise_exception", args, {"message"}, 1);
  throw RenderError{to_str(rt, a[0]), true};
}

Value strftime_now(Runtime& rt, const CallArgs& args) {
  const Arguments a("strftime_now", args, {"format"}, 1);
  return Value::string(format_time(rt, rt.now(), a.text(0, {})));
}

}  // namespace

const Value* find_global(std::string_view name) {
  struct Row {
    std::string_view name;
    NativeFunction function;
  };
  static constexpr Row kFunctions[] = {
      {"range", &range},
      {"namespace", &make_namespace},
      {"cycler", &make_cycler},
      {"joiner", &make_joiner},
      {"raise_exception", &raise_exception},
      {"strftime_now", &strftime_now},
  };
  static const auto* const table = [] {
    auto* values = new std::unordered_map<std::string_view, Value>;
    for (const Row& row : kFunctions) {
      values->emplace(
          row.name, Value::object(std::make_shared<Function>(std::string(row.name), row.function)));
    }
    values->emplace("dict", Value::object(std::make_shared<DictType>()));
    return values;
  }();
  const auto found = table->find(name);
  return found != table->end() ? &found->second : nullptr;
}

}  // namespace lk::jinja
