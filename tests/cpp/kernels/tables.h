// The kernel tables that a test loops over: those of this build that the processor supports, and
// the emulated avx512 and amx.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/choose.h"

namespace sinkstream {

const Kernels& avx512_emulated_kernels();
const Kernels& amx_emulated_kernels();

// All tables that have the op, whether or not the processor can run them.
template <typename Op>
std::vector<const Kernels*> tables_with(Op Kernels::*op) {
  std::vector<const Kernels*> tables = all_kernels();
#if !defined(__SANITIZE_THREAD__)  // slow, and threads share the other tables' code
  tables.push_back(&avx512_emulated_kernels());
  tables.push_back(&amx_emulated_kernels());
#endif
  std::erase_if(tables, [&](const Kernels* table) { return table->*op == nullptr; });
  return tables;
}

// A test of one op with a table as its parameter. Tables that the processor cannot run are skipped
// by name.
template <auto kTestedOp>
class TableTest : public testing::TestWithParam<const Kernels*> {
 public:
  static constexpr auto kOp = kTestedOp;

 protected:
  void SetUp() override {
    if (!table().supported()) GTEST_SKIP() << "this processor cannot run " << table().name;
  }
  const Kernels& table() const { return *GetParam(); }
};

inline std::string name_of_table(const testing::TestParamInfo<const Kernels*>& table) {
  return table.param->name;
}

#define SINKSTREAM_TEST_ALL_TABLES(Suite) \
  INSTANTIATE_TEST_SUITE_P(Tables, Suite, testing::ValuesIn(tables_with(Suite::kOp)), name_of_table)

}  // namespace sinkstream
