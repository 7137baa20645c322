#include "text/jinja/symbols.h"

#include <algorithm>

namespace lk::jinja {

VariableRef Symbols::find(const std::string& name) const {
  int hops = 0;
  for (const Symbols* at = this; at != nullptr; at = at->parent_, ++hops) {
    if (at->names_.count(name) != 0) return {hops, at->slots_.at(name)};
  }
  return {};
}

int Symbols::define(const std::string& name, SlotStart::From from) {
  const auto [it, fresh] = slots_.try_emplace(name, static_cast<int>(info_->slots.size()));
  if (fresh) info_->slots.push_back({});
  info_->slots[static_cast<size_t>(it->second)] = {from, name, {}};
  if (names_.insert(name).second) name_log_.push_back(name);
  return it->second;
}

void Symbols::set_outer(int slot, const VariableRef& outer) {
  SlotStart& start = info_->slots[static_cast<size_t>(slot)];
  start.from = SlotStart::From::kOuter;
  start.outer = {outer.hops + 1, outer.slot};
}

void Symbols::load(const std::string& name) {
  if (find(name).hops < 0) define(name, SlotStart::From::kContext);
}

void Symbols::store(const std::string& name) {
  if (stores_.insert(name).second) store_log_.push_back(name);
  if (names_.count(name) != 0) return;
  const VariableRef outer = parent_ != nullptr ? parent_->find(name) : VariableRef{};
  const int slot = define(name, SlotStart::From::kNothing);
  if (outer.hops >= 0) set_outer(slot, outer);
}

int Symbols::declare_parameter(const std::string& name) {
  if (stores_.insert(name).second) store_log_.push_back(name);
  return define(name, SlotStart::From::kParameter);
}

Symbols::Added Symbols::take_branch(Mark mark) {
  Added added;
  const auto take = [](std::vector<std::string>* log, size_t from,
                       std::unordered_set<std::string>* set) {
    std::vector<std::string> out(log->begin() + static_cast<std::ptrdiff_t>(from), log->end());
    log->resize(from);
    for (const std::string& name : out) set->erase(name);
    return out;
  };
  added.names = take(&name_log_, mark.names, &names_);
  added.stores = take(&store_log_, mark.stores, &stores_);
  return added;
}

void Symbols::merge(const std::vector<Added>& branches) {
  for (const Added& branch : branches) {
    for (const std::string& name : branch.names) {
      if (names_.insert(name).second) name_log_.push_back(name);
    }
  }
  for (const Added& branch : branches) {
    for (const std::string& name : branch.stores) {
      if (!stores_.insert(name).second) continue;
      store_log_.push_back(name);
      // Assigned in some branch only: until then the variable is the outer one.
      const int slot = slots_.at(name);
      const VariableRef outer = parent_ != nullptr ? parent_->find(name) : VariableRef{};
      if (outer.hops >= 0) {
        set_outer(slot, outer);
      } else {
        info_->slots[static_cast<size_t>(slot)].from = SlotStart::From::kContext;
      }
    }
  }
}

}  // namespace lk::jinja
