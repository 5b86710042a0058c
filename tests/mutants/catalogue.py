"""The planted bugs: what is wrong, where, and which tests must fail.

Those with a number belong to the museum: mistakes that other projects shipped. Where a mistake
cannot exist here in its original form, its sentence says what stands for it. The others are ours.
The old text must occur exactly once in its file. A change that moves it fails a test, and the
mistake must then be planted again. A killer is a program of tests/cpp and a test in it.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW = "csrc/cache/window.h"
SEQUENCE = "csrc/cache/sequence_cache.cc"
LAYERS = "csrc/cache/cache_layers.h"
SEQUENCE_HEADER = "csrc/cache/sequence_cache.h"
POOL = "csrc/cache/page_pool.cc"
STATES = "csrc/cache/state_pool.cc"
ANGLES = "csrc/cache/angles.cc"
DECODER = "csrc/model/cpu/decoder.cc"
VIEWS = "csrc/model/layer_views.cc"
LAYER_ROWS = "csrc/model/cpu/layer_rows.cc"
LAYER_ROWS_HEADER = "csrc/model/cpu/layer_rows.h"
PLAN = "csrc/model/forward_plan.cc"
ATTENTION = "csrc/kernels/cpu/attention/attention.inl"
PAGE = "csrc/kernels/cpu/attention/attend_page.inl"
APPEND = "csrc/kernels/cpu/append.inl"
EVICT = "csrc/kernels/cpu/evict.inl"
CACHE_TYPE = "csrc/kernels/cpu/cache_type.inl"
NORM = "csrc/kernels/cpu/norm.inl"
ELEMENTWISE = "csrc/kernels/cpu/elementwise.inl"
CONVOLVE = "csrc/kernels/cpu/convolve.inl"
REFERENCE = "csrc/kernels/reference/attention.cc"
INT16 = "csrc/kernels/cpu/linear/int16.inl"
INT8 = "csrc/kernels/cpu/linear/int8.inl"
AMX_INT8 = "csrc/kernels/cpu/linear/amx_int8.inl"
INPUT = "csrc/kernels/cpu/linear/input.inl"
FLOATS = "csrc/kernels/cpu/linear/floats.inl"
MULTIPLY = "csrc/kernels/cpu/linear/multiply.inl"
PANELS = "csrc/kernels/cpu/linear/panels.inl"
DOT = "csrc/kernels/cpu/linear/dot.inl"
PAIRS = "csrc/kernels/cpu/linear/pairs.inl"
AMX = "csrc/kernels/cpu/linear/amx.inl"
BANDS = "csrc/kernels/cpu/linear/bands.inl"
ALONE = "csrc/kernels/cpu/linear/single_token.inl"
DRAFTS = "csrc/engine/drafts.cc"
VERIFICATION = "csrc/engine/engine_drafts.cc"
DELIVERY = "csrc/engine/engine_flight.cc"


def _window(test: str) -> str:
    return f"cache/window:Window.{test}"


def _sequence(test: str) -> str:
    return f"cache/sequence_cache:SequenceCache.{test}"


def _shared(test: str) -> str:
    return f"cache/shared_pages:SharedPages.{test}"


def _states(test: str) -> str:
    return f"cache/state_pool:StateSlots.{test}"


def _convolve(test: str) -> str:
    return f"kernels/convolve:Tables/ConvolveTest.{test}/generic"


def _drafted(test: str) -> str:
    return f"engine/engine_speculation:SampledBy/EngineSpeculationTest.{test}/host"


def _angles(test: str) -> str:
    return f"cache/angles:Angles.{test}"


def _attention(test: str, table: str = "generic") -> str:
    return f"kernels/attention:Tables/AttentionTest.{test}/{table}"


def _scores(test: str, table: str = "generic") -> str:
    return f"kernels/attention_scores:Tables/AttentionScoresTest.{test}/{table}"


def _evict(test: str) -> str:
    return f"kernels/evict:Tables/EvictTest.{test}/generic"


def _append(test: str) -> str:
    return f"kernels/append:Tables/AppendTest.{test}/generic"


def _norm(test: str) -> str:
    return f"kernels/norm:Tables/NormTest.{test}/generic"


def _activation(test: str) -> str:
    return f"kernels/activation:Tables/ActivationTest.{test}/generic"


def _elementwise(op: str, test: str) -> str:
    return f"kernels/elementwise:Tables/{op}Test.{test}/generic"


def _linear(test: str, table: str = "generic") -> str:
    return f"kernels/linear:Tables/LinearTest.{test}/{table}"


def _prefetch(test: str) -> str:
    return f"kernels/linear_prefetch:Inputs/LinearPrefetch.{test}/bfloat16"


def _tiles(test: str) -> str:
    return _linear(test, "amx_emulated")


def _decoder(test: str) -> str:
    return f"model/decoder:Tables/DecoderOnTable.{test}/generic"


def _definition(test: str) -> str:
    return f"model/decoder_definition:Tables/DecoderDefinition.{test}/generic"


@dataclass(frozen=True)
class Mutant:
    """One mistake."""

    name: str
    sentence: str
    file: str
    old: str
    new: str
    killers: tuple[str, ...]
    """Tests of which each must fail."""
    museum: int | None = None

    def apply(self, text: str) -> str:
        """Return the file's text with the mistake in it."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(
                f"mutant {self.name}: `old` must occur once in {self.file}, but occurs {found} "
                "times. Plant the mistake again."
            )
        return text.replace(self.old, self.new)


MUSEUM = (
    Mutant(
        museum=1,
        name="shifted_before_eviction",
        sentence="A query has the last position of a full cache although nothing was evicted yet.",
        file=WINDOW,
        old="return t < sinks ? t : sinks + t - first(t);",
        new="return t < sinks ? t : capacity() - 1;",
        killers=(
            _window("RanksTheQueryLastAmongTheLive"),
            _attention("EqualsRotatingEveryLiveKeyToItsPlace"),
        ),
    ),
    Mutant(
        museum=2,
        name="query_at_its_index",
        sentence="The query is rotated by its index even for sinks: keys and query disagree about "
        "where the cache begins.",
        file=DECODER,
        old="angles.fill(rows.rank.data(), rows_,",
        new="angles.fill(plan_.index.data(), rows_,",
        killers=(_definition("HoldsForFourCapacitiesInEveryRotaryScheme"),),
    ),
    Mutant(
        museum=3,
        name="plain_frequencies",
        sentence="A key that moves is rotated by plain rotary frequencies instead of the model's "
        "own. Here keys move only when tokens in the middle are evicted.",
        file=VIEWS,
        old=".shift_angles = Angles(its_rope.inverse_frequencies)",
        new=""".shift_angles = Angles([&] {
            std::vector<double> plain = its_rope.inverse_frequencies;
            for (size_t d = 0; d < plain.size(); ++d) {
              plain[d] = __builtin_pow(10000.0, -static_cast<double>(d) / plain.size());
            }
            return plain;
          }())""",
        killers=(_definition("HoldsAfterACutInTheMiddleInEveryRotaryScheme"),),
    ),
    Mutant(
        museum=4,
        name="causal_from_the_upper_left",
        sentence="The causal mask of a chunk starts at the oldest key, as if there were as many "
        "queries as keys.",
        file=ATTENTION,
        old="span.index + token + 1 - base};",
        new="(span.count == 1 ? span.index : args.first[span.row]) + token + 1 - base};",
        killers=(_attention("MatchesTheReferenceForTenWindows"),),
    ),
    Mutant(
        museum=5,
        name="window_aligned_down",
        sentence="The kernel begins the window at the first row of its block, which the cache has "
        "freed.",
        file=ATTENTION,
        old="Rows rows = {args.first[span.row + token] - base,",
        new="Rows rows = {0,",
        killers=(_attention("MatchesTheReferenceForTenWindows"),),
    ),
    Mutant(
        museum=6,
        name="sinks_ignored",
        sentence="Sinks stay in their pages, and no query after them reads them.",
        file=ATTENTION,
        old="pages.sink_pages = divide_up(visible_sinks(span, end - 1), kPageRows);",
        new="pages.sink_pages = span.index < span.sinks ? (span.sinks + 63) / kPageRows : 0;",
        killers=(_attention("ReadsEverySink"),),
    ),
    Mutant(
        museum=7,
        name="sinks_ignored_in_16_bits",
        sentence="Sinks are ignored where the cache is narrower than float32. Planted for every "
        "narrow type.",
        file=ATTENTION,
        old="pages.sink_pages = divide_up(visible_sinks(span, end - 1), kPageRows);",
        new="""const bool reads_sinks =
      args.shape.type == DType::kFloat32 || span.index < span.sinks;
  pages.sink_pages = reads_sinks ? divide_up(visible_sinks(span, end - 1), kPageRows) : 0;""",
        killers=(_attention("ReadsEverySink"),),
    ),
    Mutant(
        museum=8,
        name="sinks_of_the_first_chunk",
        sentence="Only sinks that came before the chunk count as sinks, so a prompt whose sinks "
        "arrive in several chunks loses some.",
        file=LAYER_ROWS,
        old=".sinks = piece.pages->window.sinks,",
        new=""".sinks = piece.cache->length() == 0
                                    ? piece.pages->window.sinks
                                    : std::min(piece.pages->window.sinks,
                                               piece.cache->length()),""",
        killers=(_decoder("ChunkSizeChangesNoBit"),),
    ),
    Mutant(
        museum=9,
        name="newest_overwritten",
        sentence="A full ring overwrites its newest page and keeps its oldest.",
        file=SEQUENCE_HEADER,
        old="window.block(index) % window_page_count;",
        new="std::min(window.block(index), window_page_count - 1);",
        killers=(
            _sequence("NeverOverwritesAKeyThatAQueryOfThePieceSees"),
            _definition("HoldsForFourCapacitiesInEveryRotaryScheme"),
        ),
    ),
    Mutant(
        museum=10,
        name="shift_keeps_the_old_scale",
        sentence="A quantized key that moves gets new codes and keeps its old scale.",
        file=EVICT,
        old="            [&](int64_t d) { return shape.key_element(to.row, d); });\n",
        new="""            [&](int64_t d) { return shape.key_element(to.row, d); });
  if constexpr (kScaled<T>) {
    scales_of(reinterpret_cast<T*>(to.page + shape.key_offset(head)), head_dim)[to.row] =
        scales_of(from_keys, head_dim)[from.row];
  }
""",
        killers=(_evict("LeavesKeysAsIfTheyHadBeenWrittenThere"),),
    ),
    Mutant(
        museum=11,
        name="a_piece_of_nothing",
        sentence="At the start of a block, no token fits into the piece, and the prefill never "
        "ends.",
        file=WINDOW,
        old="block(std::max(t, sinks)) + 1 + more;",
        new="(std::max(t, sinks) - sinks + kPageRows - 1) / kPageRows + more;",
        killers=(_window("NeverWritesAPieceOverALiveToken"),),
    ),
    Mutant(
        museum=12,
        name="window_of_the_first_sequence",
        sentence="All sequences of a step see as far back as the first one.",
        file=PLAN,
        old="first.push_back(window.first(t));",
        new="""first.push_back(
          std::max(window.sinks, groups[g].pieces[0].pages->window.first(t)));""",
        killers=(_decoder("NeitherCompanyNorWhichLogitsAreWantedChangesABit"),),
    ),
    Mutant(
        museum=13,
        name="no_sinks_after_the_first_round",
        sentence="Once the ring has been filled for the first time, sinks are no longer seen.",
        file=ATTENTION,
        old="return t + 1 < span.sinks ? t + 1 : span.sinks;",
        new="""if (t >= span.sinks + span.window_page_count * kPageRows) return 0;
  return t + 1 < span.sinks ? t + 1 : span.sinks;""",
        killers=(_attention("MatchesTheReferenceForTenWindows"),),
    ),
    Mutant(
        museum=14,
        name="sinks_turned_in_place",
        sentence="Each step rotates the stored sink keys forwards and back again in their own "
        "slots. This stands for keys that are rotated in place as the window moves.",
        file=DECODER,
        old="  kernels_.append(args, launch_);",
        new="""  for (const float direction : {1.0f, -1.0f}) {
    const int64_t one = 1;
    std::vector<float> cos(rows.pairs), sin(rows.pairs);
    rope.shift_angles.fill(&one, 1, cos.data(), sin.data());
    for (float& x : sin) x *= direction;
    const ForwardPlan::Piece& piece = plan.pieces[round.piece];
    for (int64_t j = 0; j < std::min(piece.cache->window().sinks, piece.index); ++j) {
      const Slot sink = piece.cache->slot(layer, j);
      EvictArgs turn;
      turn.from = turn.to = &sink;
      turn.rows = 1;
      turn.shape = page_shape(layer);
      turn.rotation = rotation(rope.spec, {cos.data(), sin.data()});
      kernels_.evict(turn, launch_);
    }
  }
  kernels_.append(args, launch_);""",
        killers=(_definition("LeavesSinkKeysAsTheyWereFor100000Tokens"),),
    ),
    Mutant(
        museum=15,
        name="distance_without_bound",
        sentence="Sinks are scored with the query at its index, so their distance grows with the "
        "stream.",
        file=ATTENTION,
        old="is_sink ? args.query_sink : args.query_window;",
        new="args.query_window;",
        killers=(
            _attention("IsAsExactAtIndexTenMillion"),
            _definition("IsAsCloseAtIndexTenMillionAsAfterTheFirstFill"),
        ),
    ),
    Mutant(
        museum=16,
        name="angles_in_float32",
        sentence="Angles are computed in float32.",
        file=ANGLES,
        old="(fraction_of(position * frequency.upper) + position * frequency.lower) * kTurn;",
        new="static_cast<float>(position) *"
        " static_cast<float>((frequency.upper + frequency.lower) * kTurn);",
        killers=(
            _angles("AreRightToTheLastFloatAtAnyIndex"),
            _definition("IsAsCloseAtIndexTenMillionAsAfterTheFirstFill"),
        ),
    ),
    Mutant(
        museum=17,
        name="one_window_for_a_chunk",
        sentence="All tokens of a chunk see what its last token sees of the cache.",
        file=PLAN,
        old="first.push_back(window.first(t));",
        new="first.push_back(window.first(begin + span.count - 1));",
        killers=(
            _decoder("ChunkSizeChangesNoBit"),
            _definition("HoldsForFourCapacitiesInEveryRotaryScheme"),
        ),
    ),
)

OURS = (
    # --- who is live, and where -------------------------------------------------------------
    Mutant(
        name="window_without_the_current",
        sentence="The window is W tokens in addition to the current one.",
        file=WINDOW,
        old="std::max({sinks, begin, t - window + 1})",
        new="std::max({sinks, begin, t - window})",
        killers=(_window("SeesWhatTheDefinitionSays"),),
    ),
    Mutant(
        name="begin_ignored",
        sentence="Tokens that were evicted early are seen again.",
        file=WINDOW,
        old="std::max({sinks, begin, t - window + 1})",
        new="std::max(sinks, t - window + 1)",
        killers=(
            _window("SeesWhatTheDefinitionSays"),
            _definition("HoldsAfterRoomWasMadeForATurn"),
        ),
    ),
    Mutant(
        name="rank_ignores_cuts",
        sentence="A query's position does not decrease when tokens are evicted.",
        file=WINDOW,
        old="return t < sinks ? t : sinks + t - first(t);",
        new="return std::min(t, capacity() - 1);",
        killers=(
            _window("RanksTheQueryLastAmongTheLive"),
            _definition("HoldsAfterRoomWasMadeForATurn"),
        ),
    ),
    Mutant(
        name="rank_of_the_last_sink",
        sentence="The first window token has the position of the last sink.",
        file=WINDOW,
        old="return t < sinks ? t : sinks + t - first(t);",
        new="return t < sinks ? t : sinks + t - first(t) - (sinks > 0);",
        killers=(_window("RanksTheQueryLastAmongTheLive"),),
    ),
    Mutant(
        name="blocks_from_index_zero",
        sentence="Blocks are counted from the first token of the stream, not from the first one "
        "after the sinks.",
        file=WINDOW,
        old="int64_t block(int64_t i) const { return (i - sinks) / kPageRows; }",
        new="int64_t block(int64_t i) const { return i / kPageRows; }",
        killers=(_window("AlignsBlocksToTheIndex"),),
    ),
    Mutant(
        name="ring_without_a_spare",
        sentence="The ring has no page for the block that is being written.",
        file=WINDOW,
        old="return divide_up(window + look_ahead - 1, kPageRows) + 1;",
        new="return divide_up(window + look_ahead - 1, kPageRows);",
        killers=(_window("NeverWritesAPieceOverALiveToken"),),
    ),
    Mutant(
        name="ring_for_one_token_ahead",
        sentence="A ring has room for one look-ahead token, however many there are: those that are "
        "discarded have overwritten live keys.",
        file=WINDOW,
        old="return divide_up(window + look_ahead - 1, kPageRows) + 1;",
        new="return divide_up(window, kPageRows) + 1;",
        killers=(_window("HasRoomForTheLookAheadTokensAndNoPageTooMany"),),
    ),
    Mutant(
        name="pieces_of_two_blocks",
        sentence="A piece extends one block too far, and overwrites live keys.",
        file=WINDOW,
        old="block(std::max(t, sinks)) + 1 + more;",
        new="block(std::max(t, sinks)) + 2 + more;",
        killers=(_window("NeverWritesAPieceOverALiveToken"),),
    ),
    Mutant(
        name="room_for_one_too_many",
        sentence="Making room keeps one token more than fits.",
        file=SEQUENCE,
        old="cut(length_ - (recent - count));",
        new="cut(length_ - (window().window - count));",
        killers=(
            _sequence("EvictsForSpaceOnlyWhatDoesNotFit"),
            _definition("HoldsAfterRoomWasMadeForATurn"),
        ),
    ),
    Mutant(
        name="copy_without_cuts",
        sentence="A copy sees what was evicted from the original.",
        file=SEQUENCE,
        old="    group.window = other.groups_[g].window;\n",
        new="",
        killers=(_sequence("CopiesTokensCutsAndPages"),),
    ),
    Mutant(
        name="restart_keeps_the_cut",
        sentence="A sequence that starts anew still has the eviction of the one before.",
        file=SEQUENCE,
        old="  for (GroupPages& group : groups_) group.window.begin = 0;\n",
        new="",
        killers=(_sequence("JumpsToAnIndexFarAway"),),
    ),
    # --- drafts -----------------------------------------------------------------------------
    Mutant(
        name="accepts_wrong_guesses",
        sentence="A guess that was not sampled stays in the reply's text.",
        file=VERIFICATION,
        old="    if (samples_here && right == i) break;\n",
        new="",
        killers=(_drafted("RepliesAreThoseWithoutGuessesFarPastTheWindow"),),
    ),
    Mutant(
        name="penalties_miss_accepted_guesses",
        sentence="Penalties do not count the guesses that were right.",
        file=VERIFICATION,
        old="      count_progress(1, sequence, record);\n",
        new="",
        killers=(_drafted("LogProbabilitiesPenaltiesAndDrawsAreThoseWithoutGuesses"),),
    ),
    Mutant(
        name="rejected_drafts_stay",
        sentence="The next step appends after guesses that were wrong.",
        file=DELIVERY,
        old="if (row.drafts > 0 && sequence.phase",
        new="if (false && sequence.phase",
        killers=(_drafted("RepliesAreThoseWithoutGuessesFarPastTheWindow"),),
    ),
    Mutant(
        name="guesses_of_another_salt",
        sentence="What one key said is guessed for another.",
        file=DRAFTS,
        old="uint64_t hash = mixed(salt_, static_cast<uint64_t>(count));",
        new="uint64_t hash = mixed(0, static_cast<uint64_t>(count));",
        killers=(_drafted("NothingIsLearnedFromTextsOfAnotherSalt"),),
    ),
    # --- states -----------------------------------------------------------------------------
    Mutant(
        name="state_of_the_previous_owner",
        sentence="A state slot keeps what its previous owner left in it.",
        file=STATES,
        old="  pool_->memory().fill(pool_->lane(slot_, 0), 0, pool_->lane_bytes());\n",
        new="",
        killers=(_states("ANewOwnerBeginsWithZeros"),),
    ),
    Mutant(
        name="taps_from_the_newest",
        sentence="The taps of a convolution meet its inputs in the reverse order.",
        file=CONVOLVE,
        old="input(t - taps + 1 + k)",
        new="input(t - k)",
        killers=(_convolve("IsItsDefinitionWithAndWithoutEachTerm"),),
    ),
    Mutant(
        name="short_span_forgets_the_state",
        sentence="After a span with fewer tokens than a convolution sees, its state begins with "
        "the oldest input of the state before, again.",
        file=CONVOLVE,
        old="input(span.count - taps + 1 + i)",
        new="input((span.count < taps - 1 ? 0 : span.count) - taps + 1 + i)",
        killers=(_convolve("NeitherSpansNorThreadsChangeABit"),),
    ),
    Mutant(
        name="state_of_the_sinks",
        sentence="A text whose undone turn goes back to the sinks is read again from there, with "
        "a state of zeros.",
        file="csrc/cache/cache_layers.cc",
        old="  if (has_states()) return 0;  // none is kept of the sinks\n",
        new="",
        killers=(
            "cache/cache_layers:CacheLayers.ReachesBackOverTheTokensOfAStateOrToTheBeginning",
        ),
    ),
    Mutant(
        name="kept_lane_is_freed",
        sentence="The lane that a turn could be undone to is freed like any other that is passed.",
        file=STATES,
        old="return other < length && other != kept_;",
        new="return other < length;",
        killers=(_states("AreRewoundToTheKeptLaneOnly"),),
    ),
    Mutant(
        name="dropped_step_keeps_its_lane",
        sentence="The lane of a dropped step still stands for the token that never was.",
        file=SEQUENCE,
        old="  in_flight_ = 0;\n  if (states_) states_->rewind(length_);\n",
        new="  in_flight_ = 0;\n",
        killers=(_states("ADroppedStepChangesNothing"),),
    ),
    Mutant(
        name="look_ahead_reads_the_head",
        sentence="A step launched ahead reads the state before the step that is in flight.",
        file=SEQUENCE,
        old="return {states_->lane_of(index) + offset,",
        new="return {states_->lane_of(length_) + offset,",
        killers=(_states("AStepReadsWhatThePreviousOneWroteEvenInFlight"),),
    ),
    Mutant(
        name="fork_copies_the_head",
        sentence="A sequence that begins with a prefix gets the states after all tokens.",
        file=SEQUENCE,
        old="states_.emplace(*other.states_, count);",
        new="{\n    states_.emplace(*other.states_, other.length_);\n"
        "    states_->relabel(other.length_, count);\n  }",
        killers=(_states("APrefixIsSharedOnlyWhereALaneStandsForIt"),),
    ),
    # --- shared pages -----------------------------------------------------------------------
    Mutant(
        name="a_page_of_its_own_is_empty",
        sentence="The first write to a shared page goes to a new page without the old content.",
        file=POOL,
        old="  memory_->copy(page(own), page(id), shape_.bytes());\n",
        new="",
        killers=(_shared("RandomForksAndWritesNeverMeet"),),
    ),
    Mutant(
        name="sinks_are_full_too_early",
        sentence="A page whose sinks are not all written yet is shared as if it were complete.",
        file=SEQUENCE,
        old="count >= window.sinks ? window.sink_pages() : count / kPageRows;",
        new="count > 0 ? window.sink_pages() : 0;",
        killers=(_shared("SinksThatAreFullSaveTheirPages"),),
    ),
    Mutant(
        name="writes_to_the_others_page",
        sentence="Of a piece that reaches into a second page, only the first page is made private.",
        file=SEQUENCE,
        old="t < next_index() + count; t = group.window.page_end(t)) {\n",
        new="t <= next_index(); t = group.window.page_end(t)) {\n",
        killers=(_shared("RandomForksAndWritesNeverMeet"),),
    ),
    Mutant(
        name="begins_with_what_was_evicted",
        sentence="A full sequence counts as a prefix whose first tokens are still present.",
        file=SEQUENCE,
        old="has_evicted |= group.window.first(next_index()) != group.window.sinks;",
        new="has_evicted |= evicted() > 0;",
        killers=(_shared("OnlyACompletePrefixCanBeShared"),),
    ),
    Mutant(
        name="a_narrow_layer_keeps_sinks",
        sentence="A layer with a window of its own keeps the sequence's sinks as well.",
        file=LAYERS,
        old="? Window{0, own_window}",
        new="? Window{sequence.sinks, own_window}",
        killers=(_definition("HoldsFarPastTheWindowsThatLayersHaveOfTheirOwn"),),
    ),
    Mutant(
        name="a_cut_spares_narrow_layers",
        sentence="A cut evicts tokens from the largest group of layers only.",
        file=DECODER,
        old="group < layers_.group_count(); ++group) {\n    cache->cut_group(",
        new="group < layers_.group_count(); ++group) {\n"
        "    if (cache->group(group).window.sinks > 0) cache->cut_group(",
        killers=(_definition("HoldsAfterACutInTheMiddleInEveryRotaryScheme"),),
    ),
    # --- angles -----------------------------------------------------------------------------
    Mutant(
        name="frequency_of_24_bits",
        sentence="The lower part of a frequency is dropped.",
        file=ANGLES,
        old=" + position * frequency.lower) * kTurn;",
        new=") * kTurn;",
        killers=(_angles("AreRightToTheLastFloatAtAnyIndex"),),
    ),
    Mutant(
        name="no_attention_factor",
        sentence="YaRN's attention factor is forgotten.",
        file=VIEWS,
        old="Angles(its_rope.inverse_frequencies, its_rope.attention_factor)",
        new="Angles(its_rope.inverse_frequencies)",
        killers=(_definition("HoldsForFourCapacitiesInEveryRotaryScheme"),),
    ),
    Mutant(
        name="keys_turned_by_rank",
        sentence="Keys are rotated by their rank, which later ranks do not match.",
        file=DECODER,
        old="{angles.cos + before, angles.sin + before}",
        new="{rows.sink_cos + before, rows.sink_sin + before}",
        killers=(_definition("HoldsForFourCapacitiesInEveryRotaryScheme"),),
    ),
    # --- kinds of layers --------------------------------------------------------------------
    Mutant(
        name="one_rope_for_all_layers",
        sentence="Every layer rotates as the first one does.",
        file=VIEWS,
        old=".rope = static_cast<size_t>(rope - ropes_.begin())",
        new=".rope = 0 * static_cast<size_t>(rope - ropes_.begin())",
        killers=(_definition("HoldsInEveryKindOfBlockFarPastTheWindow"),),
    ),
    Mutant(
        name="cut_turns_all_keys_alike",
        sentence="A cut rotates the keys of every layer by the angles of the first rope.",
        file=DECODER,
        old="views_.rope_of(layer);",
        new="views_.ropes().front();",
        killers=(_definition("HoldsAfterACutInTheMiddleInEveryRotaryScheme"),),
    ),
    Mutant(
        name="parallel_parts_in_sequence",
        sentence="The MLP of a parallel block reads what attention has already been added to.",
        file=DECODER,
        old="  if (!block.parallel) {\n",
        new="  if (!block.parallel || block.mlp_norm) {\n",
        killers=(_definition("HoldsInEveryKindOfBlockFarPastTheWindow"),),
    ),
    Mutant(
        name="scaled_before_the_norm",
        sentence="What a block adds is scaled before its norm, which undoes it.",
        file=DECODER,
        old="  kernels_.add_scaled({.input = branch_,\n"
        "                       .scale = block.residual_scale,",
        new="  kernels_.add_scaled({.input = branch_,\n"
        "                       .scale = post_norm == nullptr ? block.residual_scale : 1,",
        killers=(_definition("HoldsInEveryKindOfBlockFarPastTheWindow"),),
    ),
    Mutant(
        name="temperature_by_index",
        sentence="A query's temperature grows with its index, so without end.",
        file=DECODER,
        old="rows.rank[static_cast<size_t>(row)] / attention.temperature_length;",
        new="plan_.index[static_cast<size_t>(row)] / attention.temperature_length;",
        killers=(_definition("HoldsInEveryKindOfBlockFarPastTheWindow"),),
    ),
    Mutant(
        name="keys_as_wide_as_the_first_layers",
        sentence="Keys and values of every layer are as wide as those of the first one.",
        file=DECODER,
        old="const int64_t kv = spec_.block(layer).attention().kv_size();",
        new="const int64_t kv = spec_.block(0).attention().kv_size() + 0 * layer;",
        killers=(_definition("HoldsInEveryKindOfBlockFarPastTheWindow"),),
    ),
    Mutant(
        name="norm_over_all_heads_of_each_head",
        sentence="A norm over all heads of a token is one over each head.",
        file=DECODER,
        old="const int64_t dim = is_full ? width : block.attention().head_dim;",
        new="const int64_t dim = block.attention().head_dim + 0 * is_full;",
        killers=(_definition("HoldsInEveryKindOfBlockFarPastTheWindow"),),
    ),
    Mutant(
        name="last_layer_keeps_the_rest_in_place",
        sentence="The rows of the residual stream that are kept for their logits do not move up.",
        file=DECODER,
        old="    move_rows(hidden_, from, hidden_, to, count, hidden);\n",
        new="",
        killers=(_decoder("NeitherCompanyNorWhichLogitsAreWantedChangesABit"),),
    ),
    # --- the last layer computes only rows whose logits are wanted --------------------------
    Mutant(
        name="kept_rows_see_what_others_see",
        sentence="A row that is kept for its logits sees the window of the row that it replaces.",
        file=LAYER_ROWS_HEADER,
        old="      move_rows(first.data(), row, first.data(), kept, piece.wanted, 1);\n",
        new="",
        killers=(_decoder("NeitherCompanyNorWhichLogitsAreWantedChangesABit"),),
    ),
    Mutant(
        name="last_row_of_each_piece",
        sentence="The last row of each piece is kept instead of the last row of the span.",
        file=PLAN,
        old="std::clamp<int64_t>(wanted_of(span) - (end - t - count), 0, count)",
        new="std::min<int64_t>(wanted_of(span), count)",
        killers=(_decoder("NeitherCompanyNorWhichLogitsAreWantedChangesABit"),),
    ),
    # --- eviction in the middle -------------------------------------------------------------
    Mutant(
        name="cut_moves_the_oldest_first",
        sentence="Eviction in the middle moves the oldest token first, over others that have not "
        "moved yet.",
        file=DECODER,
        old="""      from[i] = cache->slot(layer, cut.first + cut.older - 1 - i);
      to[i] = cache->slot(layer, cut.first + cut.older - 1 - i + distance);""",
        new="""      from[i] = cache->slot(layer, cut.first + i);
      to[i] = cache->slot(layer, cut.first + i + distance);""",
        killers=(_definition("HoldsAfterACutInTheMiddleInEveryRotaryScheme"),),
    ),
    Mutant(
        name="cut_scales_keys",
        sentence="A key that moves is multiplied by the attention factor again.",
        file=VIEWS,
        old=".shift_angles = Angles(its_rope.inverse_frequencies)",
        new=".shift_angles = Angles(its_rope.inverse_frequencies, its_rope.attention_factor)",
        killers=(_definition("HoldsAfterACutInTheMiddleInEveryRotaryScheme"),),
    ),
    Mutant(
        name="cut_in_halves",
        sentence="A key that moves is rotated in halves whatever the model's pairing.",
        file=DECODER,
        old="args.rotation = rotation(rope.spec, index_angles(rope));\n    kernels_.evict",
        new="args.rotation = rotation(rope.spec, index_angles(rope));\n"
        "    args.rotation.pairing = Pairing::kHalf;\n    kernels_.evict",
        killers=(_definition("HoldsAfterACutInTheMiddleInEveryRotaryScheme"),),
    ),
    Mutant(
        name="cut_leaves_keys_unturned",
        sentence="Keys that move keep their old angles.",
        file=DECODER,
        old="    rope.shift_angles.fill(&distance, ",
        new="    const int64_t none = 0;\n    rope.shift_angles.fill(&none, ",
        killers=(_definition("HoldsAfterACutInTheMiddleInEveryRotaryScheme"),),
    ),
    Mutant(
        name="cut_forgets_the_oldest",
        sentence="Eviction in the middle frees the right number of slots, but at the wrong end.",
        file=DECODER,
        old="    cache->cut_group(group, cuts[static_cast<size_t>(group)].begin);",
        new="    cache->cut_group(group, cuts[static_cast<size_t>(group)].first);",
        killers=(_definition("HoldsAfterACutInTheMiddleInEveryRotaryScheme"),),
    ),
    Mutant(
        name="evict_in_reverse",
        sentence="The op moves its rows in reverse order.",
        file=EVICT,
        old="for (int64_t r = 0; r < args.rows; ++r) evict_head<T>(args, r, head);",
        new="for (int64_t r = args.rows - 1; r >= 0; --r) evict_head<T>(args, r, head);",
        killers=(_evict("LeavesKeysAsIfTheyHadBeenWrittenThere"),),
    ),
    Mutant(
        name="evict_leaves_values",
        sentence="Keys move, and their values do not.",
        file=EVICT,
        old="= from_values[shape.value_element(from.row, d)];",
        new="= values[shape.value_element(to.row, d)];",
        killers=(_evict("MovesEveryRowAsTheReferenceOnAnyThread"),),
    ),
    # --- narrow types -----------------------------------------------------------------------
    Mutant(
        name="shift_garbles_paired_keys",
        sentence="A key that moves is read in float32's layout whatever its type, which corrupts "
        "bfloat16.",
        file=EVICT,
        old="narrow[d] = from_keys[shape.key_element(from.row, d)];",
        new="narrow[d] = from_keys[d * kPageRows + from.row];",
        killers=(_evict("LeavesKeysAsIfTheyHadBeenWrittenThere"),),
    ),
    Mutant(
        name="scale_of_the_neighbour",
        sentence="Two adjacent rows share a scale: that of the one written last.",
        file=CACHE_TYPE,
        old="scales_of(half, head_dim)[row] =",
        new="scales_of(half, head_dim)[row / 2 * 2] =",
        killers=(_append("LeavesNeighboursAlone"),),
    ),
    Mutant(
        name="codes_of_nan",
        sentence="A head with an infinite element is stored as zeros.",
        file=CACHE_TYPE,
        old="""return __builtin_nanf("");""",
        new="return 0;",
        killers=(_append("GivesEachTokenAndHeadAScaleAndCodesOfItsOwn"),),
    ),
    Mutant(
        name="value_scales_forgotten",
        sentence="Codes of values are summed without their scales.",
        file=PAGE,
        old="store(scores + row, times_scales(weight, value_scales, row));",
        new="store(scores + row, weight);",
        killers=(_attention("MatchesTheReferenceForTenWindows"),),
    ),
    # --- scores -----------------------------------------------------------------------------
    Mutant(
        name="alibi_by_text",
        sentence="ALiBi's distance to a sink is measured in the stream, not in the cache.",
        file=ATTENTION,
        old="is_sink ? args.rank[span.row + token] : span.index + token;",
        new="span.index + token;",
        killers=(_scores("MeetTheDefinitionForTenWindows"),),
    ),
    Mutant(
        name="alibi_by_text_in_the_reference",
        sentence="The same mistake in the reference, which defines the other tables.",
        file=REFERENCE,
        old=".distance = rank - j});",
        new=".distance = t - j});",
        killers=(_scores("MeetTheDefinitionForTenWindows", "reference"),),
    ),
    Mutant(
        name="soft_cap_after_alibi",
        sentence="The soft-cap is applied to ALiBi's bias, too.",
        file=PAGE,
        old="      score = fma(broadcast(-slope), distances, score);\n    }\n",
        new="""      score = load(scores + row) * scoring.scale;
      score = fma(broadcast(-slope), distances, score);
      if (scoring.soft_cap > 0) score = tanh(score / scoring.soft_cap) * scoring.soft_cap;
    }
""",
        killers=(_scores("MeetTheDefinitionForTenWindows"),),
    ),
    Mutant(
        name="no_sink_logit_when_split",
        sentence="Learned sink logits are forgotten in the walk by page.",
        file=ATTENTION,
        old="join_sink_logit(fold, sums, args.sink_logits[head], vectors);",
        new="{}",
        killers=(_scores("HaveTheSameBitsHoweverTokensAreCut"),),
    ),
    Mutant(
        name="sink_logit_of_another_head",
        sentence="Every head of a group has the sink logit of its first head.",
        file=ATTENTION,
        old="args.sink_logits[queries.head(pair)]",
        new="args.sink_logits[queries.kv_head * queries.group]",
        killers=(_scores("MeetTheDefinitionForTenWindows"),),
    ),
    Mutant(
        name="sink_type_ignored",
        sentence="Sink pages are read in the window's type.",
        file=ATTENTION,
        old="is_sink ? args.sink_type : args.shape.type};",
        new="args.shape.type};",
        killers=(_scores("MatchTheReferenceOnEveryPageBorder"),),
    ),
    # --- pages and the order of addition ----------------------------------------------------
    Mutant(
        name="split_folds_backwards",
        sentence="The walk by page adds pages from the newest to the oldest.",
        file=ATTENTION,
        old="""    for (int64_t n = 0; n < tasks.pages(s).count(); ++n) {
      const Rows rows""",
        new="""    for (int64_t n = tasks.pages(s).count() - 1; n >= 0; --n) {
      const Rows rows""",
        killers=(_attention("GivesTheSameBitsHoweverTokensAreCut"),),
    ),
    Mutant(
        name="unseen_rows_times_zero",
        sentence="Minus infinity is added to the scores of rows that a query does not see, which "
        "keeps a NaN.",
        file=PAGE,
        old="scaled = select(visible_lanes(row, begin, end), scaled, nothing);",
        new="scaled += select(visible_lanes(row, begin, end), Vec{}, nothing);",
        killers=(_attention("MatchesTheReferenceForTenWindows"),),
    ),
    Mutant(
        name="values_of_unseen_rows",
        sentence="Values of rows that a query does not see are multiplied by a weight of zero.",
        file=PAGE,
        old="if (tile.end[q] > end) add_alone(q, end, tile.end[q], true);",
        new="if (tile.end[q] > end) add_alone(q, end, kPageRows, true);",
        killers=(_attention("MatchesTheReferenceForTenWindows"),),
    ),
    Mutant(
        name="second_sink_page_ignored",
        sentence="Only the first 64 sinks are read.",
        file=ATTENTION,
        old="pages.sink_pages = divide_up(visible_sinks(span, end - 1), kPageRows);",
        new="pages.sink_pages = visible_sinks(span, end - 1) > 0;",
        killers=(_attention("ReadsEverySink"),),
    ),
    Mutant(
        name="values_are_keys",
        sentence="A stored value is the rounded key.",
        file=APPEND,
        old="""  __builtin_memcpy(exact, args.values + r * args.value_stride + head * head_dim,
                   head_dim * sizeof(float));
""",
        new="",
        killers=(_append("WritesEveryRowAsTheReferenceAndNothingElse"),),
    ),
    Mutant(
        name="order_by_batch",
        sentence="Tiles of several tokens add directly into their outputs, which saves a "
        "register: a token in a batch is summed in another order than a single one.",
        file=FLOATS,
        old="for (int v = 0; v < kVectors; ++v) "
        "sum[t][v] = Vec{} + chains[0][t][v] + chains[1][t][v];",
        new="""for (int v = 0; v < kVectors; ++v) {
          const bool is_direct = !weights.scales.is_scaled() && kTokens > 1;
          if (is_direct) acc[t][v] = acc[t][v] + chains[0][t][v];
          sum[t][v] = (is_direct ? Vec{} : Vec{} + chains[0][t][v]) + chains[1][t][v];
        }""",
        killers=(
            _linear("GivesATokenTheSameBitsInEveryBatch"),
            _decoder("NeitherCompanyNorWhichLogitsAreWantedChangesABit"),
        ),
    ),
    # --- inputs in 16 bits ------------------------------------------------------------------
    Mutant(
        name="scale_of_the_first_token",
        sentence="All tokens of a tile use the first one's scale.",
        file=INT16,
        old="broadcast(inputs.scales[t]);",
        new="broadcast(inputs.scales[0]);",
        killers=(_linear("GivesATokenTheSameBitsInEveryBatch"),),
    ),
    Mutant(
        name="middle_codes_left_in_place",
        sentence="A single token adds codes masked in place, and does not shift the sums.",
        file=INT16,
        old="chains[c][t][v] >> (4 * c)",
        new="chains[c][t][v]",
        killers=(_linear("GivesATokenTheSameBitsInEveryBatch", "avx512_emulated"),),
    ),
    Mutant(
        name="parts_share_the_rows_of_the_first",
        sentence="Neighboring parts of a call that read rows of one input read the same rows.",
        file=PANELS,
        old="other.tokens == part.tokens &&\n             other.row_of == part.row_of;",
        new="other.tokens == part.tokens;",
        killers=(_linear("GivesAPartWithInputsOfItsOwnTheBitsOfACallOfItsOwn"),),
    ),
    Mutant(
        name="list_of_rows_ignored",
        sentence="A part with an input of its own reads its rows in order, whatever its list says.",
        file=PANELS,
        old="run.row_of = part.row_of;",
        new="",
        killers=(_linear("GivesAPartWithInputsOfItsOwnTheBitsOfACallOfItsOwn"),),
    ),
    Mutant(
        name="last_tile_of_a_block_left_out",
        sentence="Many tokens are processed in blocks, and a block omits its last ones.",
        file=PANELS,
        old="tile + block < tiles ? tile + block : tiles",
        new="tile + block < tiles ? tile + block - 1 : tiles",
        killers=(_linear("GivesATokenTheSameBitsAmongMany"),),
    ),
    Mutant(
        name="pairs_taken_in_halves",
        sentence="One chain of dot products takes the first half of a unit, the other the second.",
        file=DOT,
        old="n / (Weights::kGroup / 4) : n % 2}",
        new="n / (Weights::kGroup / 4) : n / (Weights::kGroup / 4)}",
        killers=("kernels/linear:LinearOrder.OfDotsIsThatOfItsTwoChains",),
    ),
    Mutant(
        name="upper_codes_of_a_word_swapped",
        sentence="Of four codes of 8 bits in a word, the third and the fourth are swapped.",
        file=PAIRS,
        old="float_of_byte<2>(words) >> 16 | float_of_byte<3>(words)",
        new="float_of_byte<3>(words) >> 16 | float_of_byte<2>(words)",
        killers=(_linear("EqualsTheReferenceForEveryShape", "avx512_emulated"),),
    ),
    Mutant(
        name="last_columns_decoded_past_the_panel",
        sentence="Among values for many tokens, the last columns of a panel are decoded as a whole "
        "unit.",
        file=MULTIPLY,
        old="if (has_last && n + 1 == count) {",
        new="if (has_last && n > count) {",
        killers=(_linear("ReadsNothingOutsideItsPanels"),),
    ),
    Mutant(
        name="minima_of_the_first_unit",
        sentence="All units that are decoded together have the minima of the first.",
        file=MULTIPLY,
        old="if (unit.scales.has_minima()) unit.scales.minima += kUnitScales;",
        new="",
        killers=(_linear("EqualsTheReferenceForEveryShape"),),
    ),
    Mutant(
        name="only_the_first_tile_asks",
        sentence="Of the tiles that share the prefetching of a panel, all do the first one's part.",
        file=MULTIPLY,
        old="prefetch.part(n), sums + token);",
        new="prefetch.part(0), sums + token);",
        killers=(_prefetch("PrefetchesEveryLineWhateverTheTokens"),),
    ),
    Mutant(
        name="the_units_at_hand_are_asked_for_again",
        sentence="Tiles prefetch the units that have just been decoded.",
        file=MULTIPLY,
        old="prefetch_parts(tile.panel + begin + distance, bytes,",
        new="prefetch_parts(tile.panel + begin, bytes,",
        killers=(_prefetch("PrefetchesEveryLineWhateverTheTokens"),),
    ),
    Mutant(
        name="all_tokens_ask_for_a_panel",
        sentence="Where a task has more tokens than fit into one call, all ask for the panel.",
        file="csrc/kernels/cpu/linear/linear.inl",
        old="multiply_panel<kWay>(args, inputs, found, token, until, token == begin);",
        new="multiply_panel<kWay>(args, inputs, found, token, until, true);",
        killers=(_prefetch("PrefetchesEveryLineWhateverTheTokens"),),
    ),
    Mutant(
        name="a_part_is_asked_for_at_once",
        sentence="A tile prefetches all of its part with the first group.",
        file="csrc/kernels/cpu/prefetch_lines.inl",
        old="divide_up(lines, steps > 0 ? steps : 1) * kLineBytes",
        new="divide_up(lines, 1) * kLineBytes",
        killers=("kernels/linear_prefetch:PrefetchLines.CoverAPieceOnceAtAnEvenPace",),
    ),
    Mutant(
        name="the_other_cache_is_asked",
        sentence="Weights are prefetched to the slower cache level.",
        file="csrc/kernels/cpu/simd.inl",
        old="__builtin_prefetch(address, 0, kToL1 ? 3 : 2);",
        new="__builtin_prefetch(address, 0, kToL1 ? 2 : 3);",
        killers=(_prefetch("PrefetchesToTheFasterCacheLevel"),),
    ),
    Mutant(
        name="one_copy_for_all_threads",
        sentence="Threads that lay out a single token do so in the same memory.",
        file=PANELS,
        old="return args.tokens == 1 ? thread : 0;",
        new="return args.tokens == 1 ? 0 : 0;",
        killers=("kernels/linear_panels:LinearPanels.AThreadReadsTheCopyOfATokenThatItHasMade",),
    ),
    Mutant(
        name="only_the_caller_begins",
        sentence="Of the threads of a loop, only the caller prepares what its tasks read.",
        file="csrc/common/thread_pool.cc",
        old="bool has_begun = loop_.call_begin == nullptr;",
        new="bool has_begun = loop_.call_begin == nullptr || thread > 0;",
        killers=("common/thread_pool:ThreadPool.EachThreadBeginsOnceBeforeItsFirstTask",),
    ),
    Mutant(
        name="workers_keep_their_cores",
        sentence="Only the calling thread yields its core; a worker continues to compute.",
        file="csrc/common/thread_pool.cc",
        old="if (offers == std::exchange(*seen, offers)) return;",
        new="if (offers >= std::exchange(*seen, offers)) return;",
        killers=("common/thread_pool:ThreadPool.EachWorkerOffersItsCoreBeforeTheNextTask",),
    ),
    Mutant(
        name="int8_codes_in_file_order",
        sentence="Inputs are paired with int8 codes by adjacent columns, as for int4 codes.",
        file=INPUT,
        old="store_halfwords(quads + i, as_quads(halves));",
        new="store_halfwords(quads + i, halves);",
        killers=(_linear("EqualsTheReferenceForEveryShape"),),
    ),
    Mutant(
        name="infinity_becomes_zeros",
        sentence="A group with an input that is not finite counts as zeros.",
        file=INPUT,
        old='if (!is_finite) integers.scale = __builtin_nanf("");',
        new="",
        killers=(_linear("CountsUnitsInIntegersAsTheReferenceDoesAtTheEdgesOfFloats"),),
    ),
    # --- inputs in 8 bits -------------------------------------------------------------------
    Mutant(
        name="offset_of_codes_left_in_the_sum",
        sentence="Sums of unsigned codes are not corrected by their offset.",
        file=INT8,
        old="broadcast_int(-weights.offset * count);",
        new="broadcast_int(0 * count);",
        killers=(_linear("EqualsTheReferenceForEveryShape"),),
    ),
    Mutant(
        name="inputs_scaled_before_weights",
        sentence="A sum is multiplied by the inputs' scale first, which rounds elsewhere.",
        file=INT8,
        old="fma_once(scale * to_float(sum), broadcast(input_scale), acc)",
        new="fma_once(scale, to_float(sum) * broadcast(input_scale), acc)",
        killers=(_linear("EqualsTheReferenceForEveryShape"),),
    ),
    Mutant(
        name="signed_weights_saturate",
        sentence="Signed weights are multiplied as unsigned ones, whose pairs saturate.",
        file="csrc/kernels/cpu/simd_avx2.inl",
        old="if constexpr (kSigned) {",
        new="if constexpr (false) {",
        killers=(_linear("AddsTheLargestCodesAndInputsWithoutOverflow", "avx2"),),
    ),
    Mutant(
        name="last_converted_group_left_out",
        sentence="Of an even number of converted groups, the tile unit omits the last one.",
        file=AMX_INT8,
        old="if (group + 1 < groups) add.template operator()<1>(group + 1);",
        new="if (group + 2 < groups) add.template operator()<1>(group + 1);",
        killers=(_linear("EqualsTheReferenceForEveryShape", "amx_emulated"),),
    ),
    # --- the tile unit ----------------------------------------------------------------------
    Mutant(
        name="tail_read_past_the_panel",
        sentence="The last columns of a panel are read as a whole unit, with part of the next "
        "panel.",
        file=AMX,
        old="multiply_registers<kPanels, kBands>(padded[0], kUnitBytes, x, band_stride);",
        new="multiply_registers<kPanels, kBands>(unit, panel_stride, x, band_stride);",
        killers=(_tiles("ReadsNothingOutsideItsPanels"),),
    ),
    Mutant(
        name="one_scale_for_both_halves",
        sentence="Where groups of 16 columns have scales, a unit takes its first one for all 32.",
        file="csrc/kernels/cpu/linear/codes.inl",
        old="unit.index * kUnit / kFormat.group + part;",
        new="unit.index * kUnit / kFormat.group;",
        killers=(_linear("EqualsTheReferenceForEveryShape"),),
    ),
    Mutant(
        name="spare_bits_taken_as_stored",
        sentence="The last pair of a unit of 5-bit codes takes its bits in reverse.",
        file="csrc/kernels/cpu/linear/codes.inl",
        old="shift_halfwords(code_word(codes, word, v), 15 - word - kFrom);",
        new="shift_halfwords(code_word(codes, kBits - word, v), 15 - word - kFrom);",
        killers=(_linear("EqualsTheReferenceForEveryShape"),),
    ),
    Mutant(
        name="registers_configured_once",
        sentence="A task that passes to panels with scales per 16 columns keeps the tile unit's "
        "shapes.",
        file=AMX,
        old="if (pairs != configured_pairs && needs_tiles",
        new="if (configured_pairs == 0 && needs_tiles",
        killers=(_tiles("GivesAPartTheSameBitsWithAnyOtherParts"),),
    ),
    Mutant(
        name="infinite_scales_let_in",
        sentence="Only the last block of a row is checked for scales that are not finite.",
        file="csrc/kernels/pack.cc",
        old="all_finite &= is_finite(kFormat, numbers);",
        new="all_finite = is_finite(kFormat, numbers);",
        killers=("kernels/pack:Pack.SaysWhetherAllScalesAreFinite",),
    ),
    Mutant(
        name="band_upside_down",
        sentence="The tokens of a band are in their register in reverse order.",
        file=BANDS,
        old="const int64_t token = band * bands.size + t;",
        new="const int64_t token = (band + 1) * bands.size - 1 - t;",
        killers=(
            _tiles("EqualsTheReferenceForEveryShape"),
            _tiles("GivesATokenTheSameBitsInEveryBatch"),
        ),
    ),
    Mutant(
        name="sums_of_the_group_before",
        sentence="Sums over a group of codes begin with those of the previous group.",
        file=AMX,
        old="    clear_sums<1, 1>();\n",
        new="",
        killers=(_tiles("EqualsTheReferenceForEveryShape"),),
    ),
    Mutant(
        name="first_panel_twice",
        sentence="Two panels that are multiplied by bands together are the first one twice.",
        file=AMX,
        old="    tiles::load<kFirstWeights + 1>(weights + panel_stride);",
        new="    tiles::load<kFirstWeights + 1>(weights);",
        killers=(_tiles("EqualsTheReferenceForEveryShape"),),
    ),
    Mutant(
        name="sums_of_a_block_lost",
        sentence="With codes, each block of groups resets its sums.",
        file=AMX,
        old="  for (int t = 0; t < kTokens; ++t) acc[t][0] = load(sums[t]);",
        new="  for (int t = 0; t < kTokens; ++t) acc[t][0] = Vec{};",
        killers=(_tiles("EqualsTheReferenceForEveryShape"),),
    ),
    Mutant(
        name="pair_across_parts",
        sentence="The last panel of a part is paired with the first of the next part.",
        file=AMX,
        old="const int64_t panels = left < most ? left : most;",
        new="const int64_t panels = left < 0 ? left : most;",
        killers=(_tiles("WritesEachPartOfAnOddNumberOfPanelsAlone"),),
    ),
    Mutant(
        name="one_chain_for_a_token_alone",
        sentence="A single token adds the products of even and odd columns in one chain.",
        file=ALONE,
        old="odd = fma(weights.odd, broadcast(x[2 * pair + 1]), odd);",
        new="even = fma(weights.odd, broadcast(x[2 * pair + 1]), even);",
        killers=(_tiles("GivesATokenTheSameBitsInEveryBatch"),),
    ),
    Mutant(
        name="tiles_kept",
        sentence="A thread does not release its tile registers after its task.",
        file=AMX,
        old="  if (configured_pairs > 0) tiles::release();\n",
        new="",
        killers=(_tiles("EqualsTheReferenceForEveryShape"),),
    ),
    Mutant(
        name="padding_has_a_deviation",
        sentence="Lanes past a row's end count as zeros in LayerNorm's variance.",
        file=NORM,
        old="sum_over(input, args.dim, mean, [&]",
        new="sum_over(input, args.dim, 0, [&]",
        killers=(_norm("MatchesTheReference"),),
    ),
    Mutant(
        name="bias_for_whole_vectors",
        sentence="The last numbers of a row that does not fill its last vector get no bias.",
        file=NORM,
        old="    if constexpr (kHasBias) x += args.bias[d];\n",
        new="",
        killers=(_norm("MatchesTheReference"),),
    ),
    Mutant(
        name="square_of_a_rounded_number",
        sentence="GELU's exponent has the rounding error of x².",
        file="csrc/kernels/cpu/math.inl",
        old="as_words(size) & 0xfffff000",
        new="as_words(size) & 0xffffffff",
        killers=(_activation("GivesGeluOfTheTailWithinSixUnits"),),
    ),
    Mutant(
        name="relu_of_nan_is_zero",
        sentence="The squared ReLU of NaN is 0.",
        file="csrc/kernels/cpu/activation.inl",
        old="max(Vec{}, x)",
        new="max(x, Vec{})",
        killers=(_activation("KeepsNan"),),
    ),
    Mutant(
        name="clamped_nan",
        sentence="NaN is clamped to the limit.",
        file=ELEMENTWISE,
        old="max(-limit, min(limit, x))",
        new="max(min(x, limit), -limit)",
        killers=(_elementwise("Clamp", "LimitsInfinityAndKeepsNan"),),
    ),
    Mutant(
        name="scale_after_the_cap",
        sentence="A soft-cap ignores the scale of the logits.",
        file=ELEMENTWISE,
        old="tanh(scale * x / cap)",
        new="tanh(x / cap)",
        killers=(
            _elementwise("SoftCap", "MatchesTheReference"),
            _elementwise("SoftCap", "GivesKnownValues"),
        ),
    ),
    Mutant(
        name="factor_of_the_first_row",
        sentence="All queries of a call are multiplied by the first one's factor.",
        file="csrc/kernels/cpu/rope.inl",
        old="*= args.factors[r]",
        new="*= args.factors[0]",
        killers=("kernels/rope:Tables/RopeTest.MultipliesTheHeadsOfEachRowByItsFactor/generic",),
    ),
    Mutant(
        name="unscaled_embedding",
        sentence="Rows of the embedding are not multiplied by the model's scale.",
        file="csrc/kernels/cpu/embedding.inl",
        old="    if (args.scale == 1) return;",
        new="    if (args.scale != 0) return;",
        killers=("kernels/embedding:Tables/EmbeddingTest.MultipliesRowsByTheScale/generic",),
    ),
)

CATALOGUE = MUSEUM + OURS
