#include "kernels/choose.h"

#include <gtest/gtest.h>

#include <set>

#include "common/errors.h"

namespace sinkstream {
namespace {

TEST(ChooseKernels, TakesTheBestTableThatTheProcessorSupports) {
  const ChosenKernels chosen = choose_kernels("");
  for (const Kernels* table : all_kernels()) {
    if (!table->supported()) continue;
    EXPECT_STREQ(chosen.kernels.name, table->name);
    break;
  }
}

TEST(ChooseKernels, ObeysAForcedName) {
  for (const Kernels* table : all_kernels()) {
    if (!table->supported()) continue;
    const ChosenKernels chosen = choose_kernels(table->name);
    EXPECT_STREQ(chosen.kernels.name, table->name);
    EXPECT_EQ(chosen.kernels.native_input, table->native_input);
    if (table->linear == nullptr) continue;
    EXPECT_EQ(chosen.kernels.linear, table->linear);
  }
}

TEST(ChooseKernels, LeavesNoOpEmptyAndSaysWhoServesEach) {
  const std::set<std::string> ops = {
      "embedding",  "norm",     "linear", "rope",  "append",  "attention", "evict",  "activation",
      "add_scaled", "soft_cap", "clamp",  "route", "combine", "convolve",  "logits", "sample"};
  for (const Kernels* table : all_kernels()) {
    if (!table->supported()) continue;
    const ChosenKernels chosen = choose_kernels(table->name);
    std::set<std::string> served;
    for (const auto& [op, by] : chosen.served_by) {
      EXPECT_TRUE(served.insert(op).second) << op << " is listed twice";
      bool is_known = false;
      for (const Kernels* known : all_kernels()) is_known |= known->name == by;
      EXPECT_TRUE(is_known) << by;
    }
    EXPECT_EQ(served, ops);
    const Kernels& kernels = chosen.kernels;
    EXPECT_TRUE(
        kernels.embedding != nullptr && kernels.norm != nullptr && kernels.linear != nullptr &&
        kernels.rope != nullptr && kernels.append != nullptr && kernels.attention != nullptr &&
        kernels.evict != nullptr && kernels.activation != nullptr &&
        kernels.add_scaled != nullptr && kernels.soft_cap != nullptr && kernels.clamp != nullptr &&
        kernels.route != nullptr && kernels.combine != nullptr && kernels.convolve != nullptr &&
        kernels.logits != nullptr && kernels.sample != nullptr);
  }
}

TEST(ChooseKernels, NeverTakesAnOpFromABetterTable) {
  for (const auto& [op, by] : choose_kernels("reference").served_by) EXPECT_EQ(by, "reference");
}

TEST(ChooseKernels, NamesWhatItSupportsWhenTheNameIsUnknown) {
  try {
    choose_kernels("sse9");
    FAIL() << "accepted an unknown table";
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.param, "SINKSTREAM_KERNELS");
    EXPECT_NE(message.find("but is \"sse9\"."), std::string::npos) << message;
    for (const Kernels* table : all_kernels()) {
      const bool is_listed = message.find(table->name) != std::string::npos;
      EXPECT_EQ(is_listed, table->supported()) << table->name << " in: " << message;
    }
  }
}

TEST(ChooseKernels, RefusesATableThatTheProcessorLacksAndListsTheOthers) {
  std::string listed;
  for (const Kernels* table : all_kernels()) {
    if (table->supported()) listed += (listed.empty() ? "" : ", ") + std::string(table->name);
  }
  for (const Kernels* table : all_kernels()) {
    if (table->supported()) continue;
    try {
      choose_kernels(table->name);
      FAIL() << "accepted " << table->name;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.what(), "load: SINKSTREAM_KERNELS must be one of " + listed +
                                  " on this processor, but is \"" + table->name + "\".");
    }
  }
}

// As on a processor with only SSE2.
TEST(ChooseKernels, TakesTheGenericTableWhereTheProcessorHasNoVectorSets) {
  std::vector<Kernels> lacking;
  for (const Kernels* table : all_kernels()) {
    if (table == &generic_kernels()) break;
    lacking.push_back(*table);
    lacking.back().supported = [] { return false; };
  }
  std::vector<const Kernels*> tables;
  for (const Kernels& table : lacking) tables.push_back(&table);
  tables.insert(tables.end(), {&generic_kernels(), &reference_kernels()});
  if (lacking.empty()) GTEST_SKIP() << "this build has no table above generic";
  EXPECT_STREQ(choose_kernels("", tables).kernels.name, "generic");
  for (const auto& [op, by] : choose_kernels("", tables).served_by) {
    EXPECT_TRUE(by == "generic" || by == "reference") << op << " by " << by;
  }
  try {
    choose_kernels(tables.front()->name, tables);
    FAIL() << "accepted a table that the processor lacks";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("one of generic, reference on"), std::string::npos)
        << error.what();
  }
}

TEST(ChooseKernels, HasNoTableThatIsSupportedAndRefused) {
  for (const Kernels* table : all_kernels()) {
    if (table->refusal == nullptr || table->refusal() == nullptr) continue;
    EXPECT_FALSE(table->supported()) << table->name << ": " << table->refusal();
  }
}

#if defined(__x86_64__)
TEST(ChooseKernels, PrefersTheTileUnitToVectors) {
  const std::vector<const Kernels*> tables = all_kernels();
  ASSERT_GE(tables.size(), 2u);
  EXPECT_EQ(tables[0], &amx_kernels());
  EXPECT_EQ(tables[1], &avx512_kernels());
  EXPECT_EQ(tables[0]->native_input, tables[1]->native_input);
}

TEST(ChooseKernels, TakesLinearFromTheTileUnitAndAllElseFromVectors) {
  if (!amx_kernels().supported()) GTEST_SKIP() << "this machine cannot run amx";
  for (const auto& [op, by] : choose_kernels("").served_by) {
    EXPECT_EQ(by, op == "linear" ? "amx" : "avx512") << op;
  }
}
#endif

}  // namespace
}  // namespace sinkstream
