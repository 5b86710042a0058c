// The two lanes of tests with many cases, as in tests/python/lanes.py: `make test` runs some cases
// of a product, and everything else runs all.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <numeric>
#include <ranges>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sinkstream {

// What SINKSTREAM_TEST_CASES says.
inline bool are_some_cases_enough() {
  const char* const set = std::getenv("SINKSTREAM_TEST_CASES");
  const std::string_view name = set == nullptr ? "" : set;
  if (name.empty() || name == "all") return false;
  if (name == "some") return true;
  throw std::invalid_argument("SINKSTREAM_TEST_CASES must be all or some, but is \"" +
                              std::string(name) + "\".");
}

// Whether to run a case of a product of lists. `indices` are those of its values in their lists, or
// their sum. Where some cases are enough, one in `count` is run: if each list has at least `count`
// values, every two values of two of at least three lists meet, and every value of one of two
// occurs.
inline bool runs_case(int64_t count, std::initializer_list<int64_t> indices) {
  if (!are_some_cases_enough()) return true;
  return std::accumulate(indices.begin(), indices.end(), int64_t{0}) % count == 0;
}

// The values of a list, each with its index.
template <std::ranges::range List>
auto indexed(const List& list) {
  std::vector<std::pair<int64_t, std::ranges::range_value_t<List>>> values;
  for (const auto& value : list) values.emplace_back(std::ssize(values), value);
  return values;
}

template <typename Value>
auto indexed(std::initializer_list<Value> list) {
  return indexed(std::vector<Value>(list));
}

}  // namespace sinkstream
