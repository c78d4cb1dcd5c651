// Texts that occur again and again, each kept once.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

namespace weft::trace {

class Names {
 public:
  std::int32_t id(std::string_view text) {
    if (const auto known = ids_.find(text); known != ids_.end()) return known->second;
    const auto id = static_cast<std::int32_t>(texts_.size());
    texts_.emplace_back(text);  // a deque never moves what it holds: the key is a view of it
    ids_.emplace(texts_.back(), id);
    return id;
  }

  [[nodiscard]] const std::deque<std::string>& texts() const noexcept { return texts_; }

 private:
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, std::int32_t> ids_;
};

}  // namespace weft::trace
