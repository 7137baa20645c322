// Which variable a name means: Jinja decides that while compiling, one scope at a time (jinja2's
// idtracking). Used while parsing only; the resulting ScopeInfo is constant.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace lk::jinja {

// A variable: `hops` scopes outwards, then `slot`.
struct VariableRef {
  int hops = -1;
  int slot = -1;
};

// What a variable holds when its scope is entered.
struct SlotStart {
  enum class From { kNothing, kContext, kOuter, kParameter } from = From::kNothing;
  std::string name;
  VariableRef outer;  // kOuter: seen from the new scope
};

struct ScopeInfo {
  std::vector<SlotStart> slots;
};

class Symbols {
 public:
  Symbols(const Symbols* parent, ScopeInfo* info) : parent_(parent), info_(info) {}

  // A name read, assigned, or given as parameter; in the order of the source.
  void load(const std::string& name);
  void store(const std::string& name);
  int declare_parameter(const std::string& name);
  // hops is -1 if the name is not known here.
  VariableRef find(const std::string& name) const;

  // Branches of an `if` do not see each other's names: begin, visit one, take what it added; then
  // merge them all.
  struct Added {
    std::vector<std::string> names;
    std::vector<std::string> stores;
  };
  struct Mark {
    size_t names, stores;
  };
  Mark begin_branch() const { return {name_log_.size(), store_log_.size()}; }
  Added take_branch(Mark mark);
  void merge(const std::vector<Added>& branches);

 private:
  int define(const std::string& name, SlotStart::From from);
  void set_outer(int slot, const VariableRef& outer);

  const Symbols* parent_;
  ScopeInfo* info_;
  std::unordered_map<std::string, int> slots_;  // every name of this scope, whichever branch
  std::unordered_set<std::string> names_, stores_;
  std::vector<std::string> name_log_, store_log_;
};

}  // namespace lk::jinja
