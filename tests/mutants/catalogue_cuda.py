"""Mistakes in what a GPU computes, which the emulator's tests must notice: see `catalogue`."""

from __future__ import annotations

from tests.mutants.catalogue import CATALOGUE, Mutant

EXPERTS = "csrc/kernels/cuda/experts"
SAMPLE = "csrc/kernels/cuda/sampling/sample.cu"
_IN_A_WINDOW = (
    "cuda/cuda_drafts:Windows/CudaDraftsIn.SampleWhatIsSampledWithoutThemFarPastTheWindow"
)

CUDA = (
    Mutant(
        name="gpu_ties_to_the_higher_expert",
        sentence="Of two experts with equal scores, a GPU chooses the higher one.",
        file=f"{EXPERTS}/route.cu",
        old="(other == best && other_index < index)",
        new="(other == best && other_index > index)",
        killers=("cuda/route:CudaRoute.GivesTiesToTheLowerExpertAndTheLowerGroup",),
    ),
    Mutant(
        name="gpu_idle_rows_choose_experts",
        sentence="Rows without a token choose experts, which are then read for them.",
        file=f"{EXPERTS}/route.cu",
        old="if (args.tokens[row].sequence < 0) return write_all(true);",
        new="",
        killers=("cuda/route:CudaRoute.AnIdleRowChoosesNone",),
    ),
    Mutant(
        name="gpu_runs_of_an_expert_repeat",
        sentence="Each run of an expert has the rows of its first.",
        file=f"{EXPERTS}/group_rows.cu",
        old="{e, first + done,",
        new="{e, first,",
        killers=("cuda/group_rows:CudaGroupRows.GroupsAsTheProcessorDoes",),
    ),
    Mutant(
        name="gpu_counts_without_the_warps_before",
        sentence="Rows of two warps get the same position of an expert.",
        file=f"{EXPERTS}/group_rows.cu",
        old="      shared[w * experts + e] = sum;",
        new="      shared[w * experts + e] = 0;",
        killers=("cuda/group_rows:CudaGroupRows.GroupsAsTheProcessorDoes",),
    ),
    Mutant(
        name="gpu_adds_experts_by_position",
        sentence="The outputs of a token's experts are added in another order than the router's.",
        file=f"{EXPERTS}/combine.cu",
        old="for (int64_t i = row * args.chosen; i < (row + 1) * args.chosen; ++i) {",
        new="for (int64_t i = (row + 1) * args.chosen; i-- > row * args.chosen;) {",
        killers=("cuda/combine:CudaCombine.AddsInTheRoutersOrderAndTheSharedExpertLast",),
    ),
    Mutant(
        name="gpu_open_blocks_of_one_unit",
        sentence="A GPU finds the scales of an open block as if it had 32 columns.",
        file="csrc/kernels/cuda/linear/weights.h",
        old="int(col) / int(open) * kOpenScaleBytes",
        new="int(col) / int{kUnit} * kOpenScaleBytes",
        killers=("cuda/weights:Weights.KeepOpenBlocksOfAnyLength",),
    ),
    Mutant(
        name="gpu_samples_after_wrong_guesses",
        sentence="A GPU samples after a guess that was wrong.",
        file=SAMPLE,
        old="found[0] = args.sampled[r - 1].token == params.draft ? 1 : 0;",
        new="found[0] = 1;",
        killers=(
            "cuda/cuda_drafts:CudaDrafts.NothingIsSampledAfterAWrongGuessEvenIfALaterOneIsRight",
        ),
    ),
    Mutant(
        name="gpu_samples_all_guesses_at_once",
        sentence="A GPU samples after all guesses before it counts any of them for penalties.",
        file="csrc/model/cuda/sampling.cc",
        old="    params.wave = static_cast<int32_t>(i);\n",
        new="",
        killers=(f"{_IN_A_WINDOW}/sinks_4_window_9",),
    ),
    Mutant(
        name="gpu_drafts_in_scratch_pages",
        sentence="Drafts that are rejected have overwritten a whole block of keys, some live.",
        file="csrc/model/forward_plan.cc",
        old="span.drafts > 0 ? 0 : scratch_pages_;",
        new="scratch_pages_;",
        killers=(f"{_IN_A_WINDOW}/sinks_0_window_64",),
    ),
)

NATIVE = CATALOGUE + CUDA
