// The kernel tables that a test loops over: those of this build that the processor supports, and
// the AVX-512 bodies in plain code.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace sinkstream {

const Kernels& avx512_emulated_kernels();

inline std::vector<const Kernels*> tables_under_test() {
  std::vector<const Kernels*> tables = all_kernels();
  tables.push_back(&avx512_emulated_kernels());
  return tables;
}

// A test with a table as its parameter. A table that the processor lacks is skipped by name.
class TableTest : public testing::TestWithParam<const Kernels*> {
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
  INSTANTIATE_TEST_SUITE_P(Tables, Suite, testing::ValuesIn(tables_under_test()), name_of_table)

}  // namespace sinkstream
