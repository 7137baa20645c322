// Filters over lists, dicts and iterators.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "text/jinja/filters.h"
#include "text/jinja/objects.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/runtime.h"
#include "text/jinja/tests.h"
#include "text/jinja/unicode.h"

namespace lk::jinja {
namespace {

Value generator(std::vector<Value> items) {
  return Value::object(std::make_shared<Generator>(std::move(items)));
}

Value ignore_case(Runtime& rt, const Value& value) {
  if (!value.is_string()) return value;
  rt.charge(static_cast<int64_t>(value.text().size()) + 1);
  return Value::string(to_lower(value.text()));
}

// A path such as "address.city" or "0.name"; none is the item itself.
class AttributePath {
 public:
  AttributePath() = default;
  explicit AttributePath(const Value& attribute) {
    if (attribute.is_none()) return;
    if (!attribute.is_string()) {
      parts_.push_back(attribute);
      return;
    }
    std::string_view rest = attribute.text();
    while (true) {
      const size_t dot = rest.find('.');
      const std::string_view part = rest.substr(0, dot);
      const bool index =
          !part.empty() && part.size() < 18 &&
          std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
      parts_.push_back(index ? Value::integer(std::stoll(std::string(part)))
                             : Value::string(std::string(part)));
      if (dot == rest.npos) break;
      rest.remove_prefix(dot + 1);
    }
  }

  Value get(Runtime& rt, Value item, const Value* fallback = nullptr) const {
    for (const Value& part : parts_) {
      rt.charge(1);
      item = get_item(rt, item, part);
      if (fallback != nullptr && !fallback->is_none() && item.is_undefined()) item = *fallback;
    }
    return item;
  }

 private:
  std::vector<Value> parts_;
};

AttributePath path_argument(const Arguments& a, size_t i) {
  return a.has(i) ? AttributePath(a[i]) : AttributePath();
}

using Key = std::function<Value(const Value&)>;

// Stable, by keys computed once.
std::vector<Value> sorted(Runtime& rt, std::vector<Value> items, bool reverse, const Key& key) {
  std::vector<std::pair<Value, Value>> keyed;
  keyed.reserve(items.size());
  for (Value& item : items) {
    rt.charge(2);
    Value k = key(item);
    keyed.emplace_back(std::move(k), std::move(item));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(rt, b.first, a.first) : less(rt, a.first, b.first);
  });
  std::vector<Value> out;
  out.reserve(keyed.size());
  for (auto& [k, item] : keyed) out.push_back(std::move(item));
  return out;
}

Value sort(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("sort", args, {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = a.flag(rt, 1, false);
  std::vector<AttributePath> paths;
  if (a.has(2) && a[2].is_string()) {
    std::string_view rest = a[2].text();
    for (size_t comma; (comma = rest.find(',')) != rest.npos; rest.remove_prefix(comma + 1)) {
      paths.emplace_back(Value::string(std::string(rest.substr(0, comma))));
    }
    paths.emplace_back(Value::string(std::string(rest)));
  } else {
    paths.push_back(path_argument(a, 2));
  }
  return Value::list(sorted(rt, list_of(rt, v), a.flag(rt, 0, false), [&](const Value& item) {
    std::vector<Value> keys;
    for (const AttributePath& path : paths) {
      Value key = path.get(rt, item);
      keys.push_back(case_sensitive ? std::move(key) : ignore_case(rt, key));
    }
    return Value::list(std::move(keys));
  }));
}

Value dictsort(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("dictsort", args, {"case_sensitive", "by", "reverse"});
  static const std::string kKey = "key";
  const std::string& by = a.text(1, kKey);
  if (by != "key" && by != "value") raise_error("You can only sort by either \"key\" or \"value\"");
  if (!v.is_dict()) {
    if (v.is_undefined())
      raise_error(v.is_missing() ? "value is undefined" : v.undefined_info().message);
    raise_error(fmt::format("'{}' object has no attribute 'items'", v.type_name()));
  }
  const bool case_sensitive = a.flag(rt, 0, false);
  std::vector<Value> pairs = list_of(rt, find_dict_method("items")(rt, v, CallArgs{}));
  return Value::list(sorted(rt, std::move(pairs), a.flag(rt, 2, false), [&](const Value& pair) {
    const Value& key = pair.items()[by == "key" ? 0 : 1];
    return case_sensitive ? key : ignore_case(rt, key);
  }));
}

Value items(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("items", args, {});
  if (v.is_undefined()) return generator({});
  if (!v.is_dict()) raise_error("Can only get item pairs from a mapping.");
  return generator(list_of(rt, find_dict_method("items")(rt, v, CallArgs{})));
}

Value list(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("list", args, {});
  return Value::list(list_of(rt, v));
}

Value length(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("length", args, {});
  return Value::integer(length_of(rt, v));
}

Value first(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("first", args, {});
  Value item;
  if (iterate(rt, v)->next(&item)) return item;
  return Value::undefined("No first item, sequence was empty.");
}

void require_reversible(const Value& v) {
  const bool iterator = v.kind() == Kind::kObject && v.object().as_generator() != nullptr;
  if (!is_iterable(v) || iterator)
    raise_error(fmt::format("'{}' object is not reversible", v.type_name()));
}

Value last(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("last", args, {});
  require_reversible(v);
  std::vector<Value> all = list_of(rt, v);
  return all.empty() ? Value::undefined("No last item, sequence was empty.") : all.back();
}

Value reverse(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("reverse", args, {});
  if (!is_iterable(v)) raise_error("argument must be iterable");
  std::vector<Value> all = list_of(rt, v);
  std::reverse(all.begin(), all.end());
  if (!v.is_string()) return generator(std::move(all));
  std::string out;
  for (const Value& c : all) out += c.text();
  return Value::string(std::move(out), v.is_safe());
}

Value join(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("join", args, {"d", "attribute"});
  const std::string separator = a.has(0) ? to_str(rt, a[0]) : "";
  const AttributePath path = path_argument(a, 1);
  std::string out;
  bool is_first = true;
  for (const Value& item : list_of(rt, v)) {
    if (!std::exchange(is_first, false)) {
      rt.charge_bytes(separator.size());
      out += separator;
    }
    append_str(rt, path.get(rt, item), &out);
    rt.check_string(out.size());
  }
  return Value::string(std::move(out));
}

Value extreme(Runtime& rt, const Value& v, const CallArgs& args, bool largest) {
  const Arguments a(largest ? "max" : "min", args, {"case_sensitive", "attribute"});
  const bool case_sensitive = a.flag(rt, 0, false);
  const AttributePath path = path_argument(a, 1);
  const std::vector<Value> all = list_of(rt, v);
  if (all.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const auto key_of = [&](const Value& item) {
    Value key = path.get(rt, item);
    return case_sensitive ? key : ignore_case(rt, key);
  };
  const Value* best = &all[0];
  Value best_key = key_of(all[0]);
  for (size_t i = 1; i < all.size(); ++i) {
    Value key = key_of(all[i]);
    if (largest ? less(rt, best_key, key, ">") : less(rt, key, best_key)) {
      best = &all[i];
      best_key = std::move(key);
    }
  }
  return *best;
}
Value min(Runtime& rt, const Value& v, const CallArgs& args) { return extreme(rt, v, args, false); }
Value max(Runtime& rt, const Value& v, const CallArgs& args) { return extreme(rt, v, args, true); }

Value sum(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("sum", args, {"attribute", "start"});
  const AttributePath path = path_argument(a, 0);
  Value total = a.has(1) ? a[1] : Value::integer(0);
  if (total.is_string()) raise_error("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : list_of(rt, v)) total = add(rt, total, path.get(rt, item));
  return total;
}

Value unique(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("unique", args, {"case_sensitive", "attribute"});
  const bool case_sensitive = a.flag(rt, 0, false);
  const AttributePath path = path_argument(a, 1);
  Dict seen;
  std::vector<Value> out;
  for (const Value& item : list_of(rt, v)) {
    Value key = path.get(rt, item);
    if (!case_sensitive) key = ignore_case(rt, key);
    if (seen.find(key) != nullptr) continue;
    seen.set(std::move(key), Value::none());
    out.push_back(item);
  }
  return generator(std::move(out));
}

Value groupby(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(a[0]);
  const Value* fallback = a.has(1) ? &a[1] : nullptr;
  const bool case_sensitive = a.flag(rt, 2, false);
  const auto key_of = [&](const Value& item) {
    Value key = path.get(rt, item, fallback);
    return case_sensitive ? key : ignore_case(rt, key);
  };
  std::vector<Value> groups;
  std::vector<Value> members;
  const auto flush = [&] {
    if (members.empty()) return;
    Value name = path.get(rt, members[0], fallback);
    groups.push_back(Value::tuple({std::move(name), Value::list(std::move(members))}, true));
    members.clear();
  };
  Value current;
  for (Value& item : sorted(rt, list_of(rt, v), false, key_of)) {
    Value key = key_of(item);
    if (!members.empty() && !equal(rt, key, current)) flush();
    current = std::move(key);
    members.push_back(std::move(item));
  }
  flush();
  return Value::list(std::move(groups));
}

Value batch(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("batch", args, {"linecount", "fill_with"}, 1);
  const int64_t count = index_of(a[0]);
  std::vector<Value> rows;
  std::vector<Value> row;
  const auto flush = [&] {
    rows.push_back(Value::list(std::move(row)));
    row.clear();
  };
  // A count below one never fills a row, except that zero flushes the empty first one.
  for (const Value& item : list_of(rt, v)) {
    if (static_cast<int64_t>(row.size()) == count) flush();
    row.push_back(item);
  }
  if (!row.empty()) {
    if (a.is_given(1) && count > static_cast<int64_t>(row.size())) {
      rt.charge(count);
      row.resize(static_cast<size_t>(count), a[1]);
    }
    flush();
  }
  return generator(std::move(rows));
}

Value slice(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("slice", args, {"slices", "fill_with"}, 1);
  const int64_t slices = index_of(a[0]);
  const std::vector<Value> all = list_of(rt, v);
  if (slices == 0) raise_error("integer division or modulo by zero");
  std::vector<Value> out;
  if (slices > 0) {
    rt.charge(slices);
    const auto length = static_cast<int64_t>(all.size());
    const int64_t each = length / slices, extra = length % slices;
    auto at = all.begin();
    for (int64_t i = 0; i < slices; ++i) {
      const auto end = at + (each + (i < extra ? 1 : 0));
      std::vector<Value> part(at, end);
      if (a.is_given(1) && i >= extra) part.push_back(a[1]);
      out.push_back(Value::list(std::move(part)));
      at = end;
    }
  }
  return generator(std::move(out));
}

Value attribute(Runtime& rt, const Value& v, const CallArgs& args) {
  const Arguments a("attr", args, {"name"}, 1);
  const std::string& name = a.text(0, {});
  if (v.is_undefined())
    raise_error(v.is_missing() ? "value is undefined" : v.undefined_info().message);
  // Attributes in Python's sense only: a dict's keys do not count.
  Value found = get_attribute(rt, v, name);
  if (v.is_dict() && find_dict_method(name) == nullptr)
    return Value::undefined(no_attribute_message(v, name));
  return found;
}

Value map(Runtime& rt, const Value& v, const CallArgs& args) {
  if (!truthy(rt, v)) return generator({});
  std::vector<Value> out;
  if (args.positional.empty()) {
    const Arguments a("map", args, {"attribute", "default"}, 1);
    const AttributePath path(a[0]);
    const Value* fallback = a.has(1) ? &a[1] : nullptr;
    for (const Value& item : list_of(rt, v)) out.push_back(path.get(rt, item, fallback));
    return generator(std::move(out));
  }
  const Value& name = args.positional[0];
  const Filter filter = name.is_string() ? find_filter(name.text()) : nullptr;
  if (filter == nullptr) raise_error(fmt::format("No filter named {}.", to_repr(rt, name)));
  CallArgs rest = args;
  rest.positional.erase(rest.positional.begin());
  for (const Value& item : list_of(rt, v)) {
    Runtime::Deeper deeper(rt);
    rt.charge(3);
    out.push_back(filter(rt, item, rest));
  }
  return generator(std::move(out));
}

Value choose(Runtime& rt, const Value& v, const CallArgs& args, bool wanted, bool by_attribute) {
  if (!truthy(rt, v)) return generator({});
  CallArgs rest = args;
  AttributePath path;
  const auto take = [&] {
    Value value = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
    return value;
  };
  if (by_attribute) {
    if (rest.positional.empty()) raise_error("Missing parameter for attribute name");
    path = AttributePath(take());
  }
  Test test = nullptr;
  if (!rest.positional.empty()) {
    const Value name = take();
    test = name.is_string() ? find_test(name.text()) : nullptr;
    if (test == nullptr) raise_error(fmt::format("No test named {}.", to_repr(rt, name)));
  }
  std::vector<Value> out;
  for (const Value& item : list_of(rt, v)) {
    rt.charge(1);
    const Value value = path.get(rt, item);
    if ((test != nullptr ? test(rt, value, rest) : truthy(rt, value)) == wanted)
      out.push_back(item);
  }
  return generator(std::move(out));
}
Value select(Runtime& rt, const Value& v, const CallArgs& args) {
  return choose(rt, v, args, true, false);
}
Value reject(Runtime& rt, const Value& v, const CallArgs& args) {
  return choose(rt, v, args, false, false);
}
Value selectattr(Runtime& rt, const Value& v, const CallArgs& args) {
  return choose(rt, v, args, true, true);
}
Value rejectattr(Runtime& rt, const Value& v, const CallArgs& args) {
  return choose(rt, v, args, false, true);
}

constexpr FilterRow kSequenceFilters[] = {
    {"sort", &sort},
    {"dictsort", &dictsort},
    {"items", &items},
    {"list", &list},
    {"length", &length},
    {"count", &length},
    {"first", &first},
    {"last", &last},
    {"reverse", &reverse},
    {"join", &join},
    {"min", &min},
    {"max", &max},
    {"sum", &sum},
    {"unique", &unique},
    {"groupby", &groupby},
    {"batch", &batch},
    {"slice", &slice},
    {"attr", &attribute},
    {"map", &map},
    {"select", &select},
    {"reject", &reject},
    {"selectattr", &selectattr},
    {"rejectattr", &rejectattr},
};

}  // namespace

std::span<const FilterRow> sequence_filters() { return kSequenceFilters; }

}  // namespace lk::jinja
