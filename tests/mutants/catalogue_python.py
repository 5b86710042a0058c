"""Mistakes for the Python code that computes by itself: `streaming_llm` and `evaluate`.

As in catalogue.py, except that a killer is a pytest node id. Most are mistakes that the method's
first implementations shipped, or that evaluations of it are known for.
"""

from __future__ import annotations

from tests.mutants.catalogue import Mutant

LAYER = "python/sinkstream/streaming_llm/cache_layer.py"
KV_CACHE = "python/sinkstream/streaming_llm/kv_cache.py"
ROTATION = "python/sinkstream/streaming_llm/rotation.py"
FAMILIES = "python/sinkstream/streaming_llm/families.py"
PLAN = "python/sinkstream/evaluate/plan.py"
SCORING = "python/sinkstream/evaluate/scoring.py"
RESULT = "python/sinkstream/evaluate/result.py"
TEXTS = "python/sinkstream/evaluate/long_texts.py"
RECALL = "python/sinkstream/evaluate/recall.py"


def _streaming(test: str) -> str:
    return f"tests/python/streaming_llm/{test}"


def _evaluate(test: str) -> str:
    return f"tests/python/evaluate/{test}"


STREAMING_LLM = (
    Mutant(
        name="evicts_before_the_forward",
        sentence="Excess tokens leave the cache before the new token has seen them.",
        file=LAYER,
        old="        sinks, sink_values = self._sinks(key_states.shape[-2])\n",
        new="        self._drop(self.first_of(self.seen + key_states.shape[-2]) - self.first)\n"
        "        sinks, sink_values = self._sinks(key_states.shape[-2])\n",
        killers=(
            _streaming("test_protocol.py::test_odd_sizes_are_those_of_the_protocol[llama-0-1]"),
        ),
    ),
    Mutant(
        name="current_token_is_recent",
        sentence="The current token counts as a recent one, so that one is lost.",
        file=LAYER,
        old="return max(self.first, index - self.recent_size)",
        new="return max(self.first, index - self.recent_size + 1)",
        killers=(
            _streaming("test_protocol.py::test_odd_sizes_are_those_of_the_protocol[llama-5-2]"),
        ),
    ),
    Mutant(
        name="sinks_stay_at_their_index",
        sentence="Positions are indices of the stream: sinks never move towards the query.",
        file=LAYER,
        old="self.rotation.table((self.first - self.start_size,), wide)",
        new="self.rotation.table((0,), wide)",
        killers=(
            _streaming("test_protocol.py::test_odd_sizes_are_those_of_the_protocol[llama-1-1]"),
        ),
    ),
    Mutant(
        name="sinks_one_place_too_near",
        sentence="Sinks are rotated by one position more than was evicted.",
        file=LAYER,
        old="self.rotation.table((self.first - self.start_size,), wide)",
        new="self.rotation.table((self.first - self.start_size + 1,), wide)",
        killers=(
            _streaming("test_protocol.py::test_odd_sizes_are_those_of_the_protocol[llama-1-1]"),
        ),
    ),
    Mutant(
        name="sinks_rounded_at_every_step",
        sentence="Sinks are rotated in place at every step, and rounded each time.",
        file=LAYER,
        old="            return rotated.to(self.sink_keys.dtype), self.sink_values\n",
        new="            self.sink_keys = rotated.to(self.sink_keys.dtype)\n"
        "            back = self.rotation.rotate(self.sink_keys, self.start_size - self.first)\n"
        "            rotated, self.sink_keys, self._rotatable = self.sink_keys, back, None\n"
        "            return rotated, self.sink_values\n",
        killers=(
            _streaming(
                "test_protocol.py::"
                "test_16_bit_models_keep_their_sinks_bit_for_bit_and_stay_near_the_protocol"
            ),
        ),
    ),
    Mutant(
        name="one_turn_of_the_sinks_for_a_chunk",
        sentence="All tokens of a chunk see the sinks where only its last token should.",
        file=LAYER,
        old="distances = [self.first_of(index) - self.start_size for index in indices]",
        new="distances = [self.first_of(indices[-1]) - self.start_size for _ in indices]",
        killers=(
            _streaming(
                "test_turns.py::"
                "test_every_token_of_a_prompt_of_ten_caches_is_that_of_the_protocol[llama]"
            ),
        ),
    ),
    Mutant(
        name="sink_slots_are_room",
        sentence="Room for a turn is made as if the sinks' slots were free, too.",
        file=LAYER,
        old="self._drop(self.seen - max(self.recent_size - count, 0) - self.first)",
        new="room = self.start_size + self.recent_size - count\n"
        "            self._drop(self.seen - max(room, 0) - self.first)",
        killers=(
            _streaming(
                "test_turns.py::test_room_is_made_only_where_it_lacks_and_never_among_sinks[23]"
            ),
        ),
    ),
    Mutant(
        name="cut_leaves_a_gap",
        sentence="Tokens older than an eviction keep their positions, and a gap remains.",
        file=LAYER,
        old="            moved = self.rotation.rotate(moved, end - start)\n",
        new="            moved = self.rotation.rotate(moved, 0)\n",
        killers=(
            _streaming(
                "test_turns.py::test_cuts_anywhere_in_the_window_are_those_of_the_protocol[llama]"
            ),
        ),
    ),
    Mutant(
        name="numbered_anew_the_wrong_way",
        sentence="Where the window gets small indices again, its keys are rotated away from them.",
        file=LAYER,
        old="self.rotation.rotate(self.keys, -distance)",
        new="self.rotation.rotate(self.keys, distance)",
        killers=(
            _streaming(
                "test_protocol.py::"
                "test_a_stream_that_is_numbered_anew_is_that_of_the_protocol[llama-yarn]"
            ),
        ),
    ),
    Mutant(
        name="legacy_keeps_one_less",
        sentence="Of legacy tuples, the oldest recent token is evicted.",
        file=KV_CACHE,
        old="return self._cut(past, self.start_size, length - self.recent_size)",
        new="return self._cut(past, self.start_size, length - self.recent_size + 1)",
        killers=(
            _streaming("test_kv_cache.py::test_legacy_tuples_keep_the_first_and_the_last[11-2-2]"),
        ),
    ),
    Mutant(
        name="sink_angles_in_float32",
        sentence="The angle by which sinks are rotated is computed in float32.",
        file=ROTATION,
        old="torch.tensor(wanted, dtype=torch.float64)[:, None] * self._frequencies",
        new="torch.tensor(wanted, dtype=torch.float32)[:, None] * self._frequencies.float()",
        killers=(
            _streaming(
                "test_rotation.py::"
                "test_keys_turn_as_the_definition_says_at_any_distance[16-10000007]"
            ),
        ),
    ),
    Mutant(
        name="sinks_by_plain_frequencies",
        sentence="Sinks are rotated by plain rotary frequencies instead of the model's own.",
        file=FAMILIES,
        old="KeyRotation(model.base_model.rotary_emb.inv_freq)",
        new="KeyRotation(model.base_model.rotary_emb.compute_default_rope_parameters(model.config)[0])",
        killers=(
            _streaming(
                "test_protocol.py::"
                "test_variants_of_the_families_are_those_of_the_protocol[llama-yarn]"
            ),
        ),
    ),
)

EVALUATE = (
    Mutant(
        name="window_without_the_sinks_share",
        sentence="A plain window has the size of the model's window without its sinks, so that it "
        "sees fewer tokens than what it is compared with.",
        file=PLAN,
        old="sinks, usual = 0, capacity.tokens",
        new="sinks, usual = 0, capacity.window",
        killers=(
            _evaluate(
                "test_perplexity_methods.py::"
                "test_every_method_scores_what_its_definition_says[window]"
            ),
        ),
    ),
    Mutant(
        name="sample_from_the_start",
        sentence="A sample includes tokens whose window has not begun to slide.",
        file=PLAN,
        old="first = min(window, read) + 1 if sample is not None else 1",
        new="first = 1",
        killers=(
            _evaluate(
                "test_perplexity_methods.py::"
                "test_a_sample_is_scored_as_in_the_whole_and_only_where_the_window_slides"
            ),
        ),
    ),
    Mutant(
        name="scores_the_token_that_was_read",
        sentence="A token is scored by the logits of a query that has seen it: the first is "
        "scored, and the last is not.",
        file=PLAN,
        old="yield surprise(logits, ids[0, begin + 1 : end + 1], begin + 1)",
        new="yield surprise(logits, ids[0, begin:end], begin)",
        killers=(
            _evaluate(
                "test_perplexity_methods.py::"
                "test_every_method_scores_what_its_definition_says[sinks]"
            ),
        ),
    ),
    Mutant(
        name="recomputed_from_one_token_less",
        sentence="Recomputation reads one token less than the window holds.",
        file=PLAN,
        old="begin = max(0, index - plan.window)",
        new="begin = max(0, index - plan.window + 1)",
        killers=(
            _evaluate(
                "test_perplexity_methods.py::"
                "test_every_method_scores_what_its_definition_says[recompute]"
            ),
        ),
    ),
    Mutant(
        name="border_token_read_in_the_block_before",
        sentence="A piece extends one token over a block's border: the previous block is charged "
        "with the time of the next one's first token.",
        file=PLAN,
        old="border = ((begin + 1) // plan.block + 1) * plan.block - 1",
        new="border = ((begin + 1) // plan.block + 1) * plan.block",
        killers=(
            _evaluate("test_perplexity_result.py::test_blocks_are_those_of_the_tokens_indices[99]"),
        ),
    ),
    Mutant(
        name="refilled_from_one_layer_less",
        sentence="A resumed run fills its cache with the reach of all layers but one.",
        file=PLAN,
        old="begin = length - model.spec.layers * (plan.window - 1)",
        new="begin = length - (model.spec.layers - 1) * (plan.window - 1)",
        killers=(
            _evaluate(
                "test_perplexity_resume.py::"
                "test_a_refilled_cache_answers_like_one_that_has_read_everything[350-9-4]"
            ),
        ),
    ),
    Mutant(
        name="border_token_in_the_block_before",
        sentence="A block's first token counts for the previous block.",
        file=SCORING,
        old="state.nll.astype(np.float64), plan.scored // plan.block",
        new="state.nll.astype(np.float64), (plan.scored - 1) // plan.block",
        killers=(
            _evaluate("test_perplexity_result.py::test_blocks_are_those_of_the_tokens_indices[50]"),
        ),
    ),
    Mutant(
        name="mean_of_block_means",
        sentence="The mean is the mean of the blocks' means, although the first and the last "
        "block have fewer tokens.",
        file=SCORING,
        old="mean = float(nll.sum()) / len(nll)",
        new="mean = float(np.mean([s / n for s, n in zip(sums, counts, strict=True) if n]))",
        killers=(
            _evaluate(
                "test_perplexity_result.py::test_perplexity_of_the_second_half_is_that_of_its_tokens"
            ),
        ),
    ),
    Mutant(
        name="mean_of_block_means_from_an_index",
        sentence="The perplexity of the rest of a text is taken from the mean of its blocks' "
        "means.",
        file=RESULT,
        old="return perplexity_of(math.fsum((mean or 0.0) * count for mean, count in blocks)"
        " / tokens)",
        new="means = [mean or 0.0 for mean, _ in blocks]\n"
        "        return perplexity_of(math.fsum(means) / len(means))",
        killers=(
            _evaluate(
                "test_perplexity_result.py::test_perplexity_of_the_second_half_is_that_of_its_tokens"
            ),
        ),
    ),
    Mutant(
        name="last_token_counts_as_evicted",
        sentence="The last token counts as read, so that one too many is reported as evicted.",
        file=SCORING,
        old="read = int(plan.scored[-1])",
        new="read = int(plan.scored[-1]) + 1",
        killers=(
            "tests/python/exactness/test_reports.py::"
            "test_a_perplexity_says_how_many_were_evicted[sinks-235]",
        ),
    ),
    Mutant(
        name="beginning_of_text_has_bytes",
        sentence="Control tokens, including the beginning of text, count as bytes of the text.",
        file=TEXTS,
        old="    sizes[sorted(table.special)] = 0\n",
        new="",
        killers=(_evaluate("test_bytes.py::test_control_tokens_are_no_bytes_of_the_text"),),
    ),
    Mutant(
        name="resumed_run_forgets_its_time",
        sentence="A resumed run reports the time since it was resumed, not that of all its tokens.",
        file=SCORING,
        old="return RunState(fresh.run, fresh.nll, seconds, len(nll))",
        new="return RunState(fresh.run, fresh.nll, fresh.block_seconds, len(nll))",
        killers=(
            _evaluate("test_resumed_time.py::test_a_resumed_run_keeps_the_time_that_was_spent"),
        ),
    ),
    Mutant(
        name="resume_loses_a_block",
        sentence="What an interrupted run has scored after the last complete block is not saved.",
        file=SCORING,
        old="nll=state.nll[: state.done],",
        new='nll=state.nll[: state.done - state.done % state.run["block"]],',
        killers=(_evaluate("test_perplexity_resume.py::test_what_was_scored_is_not_scored_again"),),
    ),
    Mutant(
        name="answers_stay_in_the_stream",
        sentence="A question is asked in the stream's own cache, where the model's answer remains.",
        file=RECALL,
        old="cache = self._cache.copy()",
        new="cache = self._cache",
        killers=(
            _evaluate(
                "test_recall.py::test_questions_about_a_needle_are_not_in_the_way_of_the_next"
            ),
        ),
    ),
)

CATALOGUE_PYTHON = STREAMING_LLM + EVALUATE
