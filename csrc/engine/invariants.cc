#include "engine/invariants.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "engine/engine.h"

namespace sinkstream {

namespace {

struct Report {
  template <typename... Parts>
  void expect(bool holds, const Parts&... sentence) {
    if (!holds) found.push_back(cat(sentence...));
  }

  std::vector<std::string> found;
};

int64_t count_of(size_t size) { return static_cast<int64_t>(size); }

// ---- memory ----------------------------------------------------------------------------------

// Calls `look` with the cache of each running sequence and session.
template <typename Look>
void for_each_cache(const EngineState& state, const Look& look) {
  for (const auto& sequence : state.running) {
    if (sequence->own_cache) look(*sequence->own_cache);
  }
  for (const auto& session : state.sessions) look(*session->cache);
}

// Every page has as many holders as its pool counts: none is leaked, and none has an uncounted
// owner.
void check_pages(const EngineState& state, const PagePool& pool, Report* report) {
  thread_local std::vector<int64_t> holders;  // [pages]; reused, so that a check allocates nothing
  holders.assign(static_cast<size_t>(pool.pages()), 0);
  for_each_cache(state, [&pool](const SequenceCache& cache) {
    for (int64_t g = 0; g < cache.group_count(); ++g) {
      if (cache.group(g).pool != &pool) continue;
      for (const int32_t page : cache.page_ids(cache.group(g)))
        ++holders[static_cast<size_t>(page)];
    }
  });
  int64_t used = 0;
  for (int64_t page = 0; page < pool.pages(); ++page) {
    const int64_t held = holders[static_cast<size_t>(page)];
    const int64_t counted = pool.holders(page);
    used += held > 0;
    report->expect(held == counted, "page ", page, " has ", held, " holders, but the pool counts ",
                   counted);
  }
  report->expect(used + pool.free_pages() + pool.spare_pages() == pool.pages(), used,
                 " pages are used, ", pool.spare_pages(), " spare and ", pool.free_pages(),
                 " free, but there are ", pool.pages());
}

// The same of state slots, which are never shared.
void check_states(const EngineState& state, const StatePool& pool, Report* report) {
  thread_local std::vector<int64_t> owners;  // [slots]; reused, so that a check allocates nothing
  owners.assign(static_cast<size_t>(pool.slots()), 0);
  for_each_cache(state, [](const SequenceCache& cache) {
    ++owners[static_cast<size_t>(cache.states()->slot())];
  });
  int64_t used = 0;
  for (int64_t slot = 0; slot < pool.slots(); ++slot) {
    const int64_t owned = owners[static_cast<size_t>(slot)];
    used += owned > 0;
    report->expect(owned <= 1, "state slot ", slot, " has ", owned, " owners");
  }
  report->expect(used + pool.free_slots() == pool.slots(), used, " state slots are used and ",
                 pool.free_slots(), " free, but there are ", pool.slots());
}

// ---- sequences -------------------------------------------------------------------------------

void check_waiting(size_t index, const Sequence& sequence, Report* report) {
  const auto expect = [&](bool holds, const auto&... what) {
    report->expect(holds, "waiting sequence ", index, " ", what...);
  };
  expect(sequence.phase == Phase::kWaiting, "is in phase ", name_of(sequence.phase));
  expect(!sequence.own_cache, "holds pages");
  expect(sequence.prefilled == 0 && sequence.stats.generated_tokens == 0, "has prefilled ",
         sequence.prefilled, " and generated ", sequence.stats.generated_tokens, " tokens");
  expect(!sequence.stream->finish_reason(), "has a stream that has ended");
}

void check_running(size_t index, const Sequence& sequence, Report* report) {
  const auto expect = [&](bool holds, const auto&... what) {
    report->expect(holds, "running sequence ", index, " ", what...);
  };
  const Phase phase = sequence.phase;
  expect(phase == Phase::kPrefill || phase == Phase::kDecode || phase == Phase::kParked,
         "is in phase ", name_of(phase));
  expect(sequence.is_prefilling() == (phase == Phase::kPrefill), "has prefilled ",
         sequence.prefilled, " of ", sequence.prompt_tokens, " tokens in phase ", name_of(phase));
  expect(sequence.prompt.empty() == !sequence.is_prefilling(), "keeps ", sequence.prompt.size(),
         " tokens of a prompt of which it has prefilled ", sequence.prefilled);
  expect(!sequence.stream->finish_reason(), "has a stream that has ended");
  expect(sequence.cache != nullptr, "holds no pages");
  if (sequence.cache == nullptr) return;

  const SequenceCache& cache = *sequence.cache;
  const MemoryAmount held = sequence.session ? MemoryAmount() : cache.held();
  if (held != sequence.memory) {  // describing them allocates
    expect(false, "holds ", describe(held), ", but was admitted with ", describe(sequence.memory));
  }
  // The last sampled token is not in the cache yet.
  const int64_t generated = sequence.stats.generated_tokens;
  const int64_t length =
      sequence.length_before + sequence.prefilled + std::max<int64_t>(generated - 1, 0);
  expect(cache.length() == length, "has ", cache.length(),
         " tokens in its cache, but has prefilled ", sequence.prefilled, " and generated ",
         generated);
  expect(sequence.stats.live_tokens == cache.live() &&
             sequence.stats.evicted_tokens == sequence.evicted(),
         "counts ", sequence.stats.live_tokens, " live and ", sequence.stats.evicted_tokens,
         " evicted tokens, but its cache ", cache.live(), " and ", cache.evicted());
}

// ---- steps in flight -------------------------------------------------------------------------

// A sequence's own count of its tokens and samples in flight agrees with the steps' rows.
void check_in_flight(const EngineState& state, size_t index, const Sequence& sequence,
                     Report* report) {
  if (sequence.cache == nullptr) return;
  int64_t tokens = 0, samples = 0, drafts = 0;
  state.flights.for_each_row([&](const FlightRow& row) {
    if (row.sequence != &sequence) return;
    tokens += row.count;
    samples += row.samples();
    drafts += row.drafts;
  });
  const SequenceCache& cache = *sequence.cache;
  report->expect(cache.in_flight() == tokens && sequence.samples_in_flight == samples &&
                     sequence.drafts_in_flight == drafts,
                 "running sequence ", index, " counts ", cache.in_flight(), " tokens, ",
                 sequence.samples_in_flight, " samples and ", sequence.drafts_in_flight,
                 " drafts in flight, but there are ", tokens, ", ", samples, " and ", drafts);
  report->expect(cache.next_index() <= cache.max_length(), "running sequence ", index,
                 " will have ", cache.next_index(), " tokens in a cache for ", cache.max_length());
}

// When a step is planned, there is room for it in flight. Each row in flight belongs to a running
// sequence or is dropped.
void check_flights(const EngineState& state, Report* report) {
  const int64_t most = state.most_in_flight - 1;
  report->expect(state.flights.in_flight() <= most, state.flights.in_flight(),
                 " steps are in flight, but at most ", most, " may be");
  state.flights.for_each_row([&](const FlightRow& row) {
    const auto is_it = [&row](const auto& sequence) { return sequence.get() == row.sequence; };
    const bool runs = std::any_of(state.running.begin(), state.running.end(), is_it);
    report->expect(row.sequence == nullptr || runs,
                   "a row in flight belongs to no running sequence");
  });
}

// Every seat is free or belongs to one sequence.
void check_seats(const EngineState& state, Report* report) {
  thread_local std::vector<int64_t> owners;  // [seats]; reused, so that a check allocates nothing
  owners.assign(static_cast<size_t>(state.seats), 0);
  const auto count = [&](int64_t seat) {
    const bool exists = seat >= 0 && seat < state.seats;
    report->expect(exists, "a sequence or the free list has seat ", seat, " of ", state.seats);
    if (exists) ++owners[static_cast<size_t>(seat)];
  };
  std::for_each(state.free_seats.begin(), state.free_seats.end(), count);
  for (const auto& sequence : state.running) {
    if (sequence->seat >= 0 || state.seats > 0) count(sequence->seat);
  }
  for (int64_t seat = 0; seat < state.seats; ++seat) {
    const int64_t owned = owners[static_cast<size_t>(seat)];
    report->expect(owned == 1, "seat ", seat, " has ", owned, " owners");
  }
}

// ---- gauges ----------------------------------------------------------------------------------

void check_gauges(const EngineState& state, Report* report) {
  const auto expect = [&](const char* gauge, int64_t shown, int64_t there) {
    report->expect(shown == there, "the gauge `", gauge, "` shows ", shown, ", but there are ",
                   there);
  };
  const auto parked = std::count_if(state.running.begin(), state.running.end(),
                                    [](const auto& s) { return s->phase == Phase::kParked; });
  expect("waiting", state.gauges.waiting, count_of(state.waiting.size()));
  expect("running", state.gauges.running, count_of(state.running.size()));
  expect("parked", state.gauges.parked, parked);
  expect("pages", state.gauges.pages, state.pools.all().all_pages());
}

// ---- the plan --------------------------------------------------------------------------------

// The sequence of a plan's row: running, or admitted by the same plan.
struct PlannedRow {
  const Sequence& sequence;
  int64_t prompt_left;
};

PlannedRow row_of(const EngineState& state, int64_t number) {
  const int64_t running = count_of(state.running.size());
  const auto index = static_cast<size_t>(number < running ? number : number - running);
  if (number >= running) return {*state.waiting[index], state.views.at(index).prompt_left};
  const Sequence& sequence = *state.running[index];
  return {sequence, sequence.prompt_left()};
}

void check_row(const EngineState& state, const PlanRow& row, Report* report) {
  const auto [sequence, prompt_left] = row_of(state, row.sequence);
  const auto expect = [&](bool holds, const auto&... what) {
    report->expect(holds, "the plan's row for sequence ", row.sequence, " ", what...);
  };
  expect(sequence.phase != Phase::kParked, "runs a parked sequence");
  expect(sequence.has_more_to_launch(), "continues past what may be its last token");
  expect(!sequence.awaits_result(), "runs ahead of the result that it depends on");
  const bool reads = prompt_left > 0;
  const int64_t most = reads ? std::min(prompt_left, state.limits.prefill_chunk) : 1 + row.drafts;
  expect(row.count >= 1 && row.count <= most, "has ", row.count, " tokens of at most ", most);
  expect(row.wants_logits == (!reads || (row.count == prompt_left && sequence.wants_reply())),
         row.wants_logits ? "wants" : "wants no", " logits with ", prompt_left,
         " prompt tokens left");
  expect(row.is_scored == (sequence.to_score() > 0), row.is_scored ? "scores" : "does not score",
         " a prompt of which ", sequence.to_score(), " tokens are to be scored");
  expect(!row.is_scored || row.count < prompt_left, "scores the prompt's last token");
}

void check_plan(const EngineState& state, Report* report) {
  const StepPlan& plan = state.plan;
  const int64_t waiting = count_of(state.waiting.size());
  report->expect(plan.admit >= 0 && plan.admit <= waiting, "the plan admits ", plan.admit, " of ",
                 waiting, " waiting sequences");
  const int64_t admitted = std::clamp<int64_t>(plan.admit, 0, waiting);
  const int64_t sequences = count_of(state.running.size()) + admitted;
  report->expect(sequences <= state.limits.max_sequences, "after the plan ", sequences,
                 " sequences run, but at most ", state.limits.max_sequences, " may");
  MemoryAmount taken;
  for (int64_t i = 0; i < admitted; ++i) taken += state.views.at(static_cast<size_t>(i)).memory;
  if (!taken.fits_in(state.pools.free())) {  // describing them allocates
    report->expect(false, "the plan takes ", describe(taken), ", but ",
                   describe(state.pools.free()), " are free");
  }

  int64_t tokens = 0, scored = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    tokens += row.count;
    const bool exists = row.sequence >= 0 && row.sequence < sequences;
    const bool is_verified_on_host =
        exists && row.drafts > 0 && row_of(state, row.sequence).sequence.samples_on_host();
    if (row.is_scored || is_verified_on_host) scored += row.count;
    report->expect(exists, "the plan's row ", i, " is for sequence ", row.sequence, " of ",
                   sequences);
    const auto same = [&row](const PlanRow& other) { return other.sequence == row.sequence; };
    report->expect(std::none_of(plan.rows.begin(), plan.rows.begin() + count_of(i), same),
                   "the plan has two rows for sequence ", row.sequence);
    if (exists) check_row(state, row, report);
  }
  report->expect(tokens <= state.limits.max_tokens, "the plan has ", tokens,
                 " tokens, but the budget is ", state.limits.max_tokens);
  report->expect(scored <= state.limits.scored_rows, "the plan scores ", scored,
                 " tokens, but at most ", state.limits.scored_rows, " have logits");
  report->expect(scored == 0 || !state.flights.want_host_logits(),
                 "the plan scores prompt tokens while a step in flight returns logits");
}

}  // namespace

std::vector<std::string> violations(const EngineState& state) {
  Report report;
  for (const PagePool* pool : state.pools.pages) {
    if (pool != nullptr) check_pages(state, *pool, &report);
  }
  if (state.pools.states != nullptr) check_states(state, *state.pools.states, &report);
  check_gauges(state, &report);
  for (size_t i = 0; i < state.waiting.size(); ++i) check_waiting(i, *state.waiting[i], &report);
  for (size_t i = 0; i < state.running.size(); ++i) {
    check_running(i, *state.running[i], &report);
    check_in_flight(state, i, *state.running[i], &report);
  }
  check_flights(state, &report);
  check_seats(state, &report);
  check_plan(state, &report);
  return std::move(report.found);
}

// Throws one error with a sentence for each violation; all streams get it.
void Engine::check_invariants() const {
  const std::vector<std::string> found =
      violations({.waiting = waiting_,
                  .running = running_,
                  .sessions = sessions_,
                  .pools = options_.pools,
                  .gauges = totals_,
                  .flights = flights_,
                  .free_seats = free_seats_,
                  .most_in_flight = most_in_flight(),
                  .seats = std::min(runner_.seats(), options_.max_sequences),
                  .plan = plan_,
                  .views = waiting_views_,
                  .limits = {.free = options_.pools.free(),
                             .max_sequences = options_.max_sequences,
                             .max_tokens = model_.max_tokens(),
                             .prefill_chunk = options_.prefill_chunk,
                             .scored_rows = most_scored_rows(model_.vocab())}});
  if (found.empty()) return;
  std::string sentences = found.front();
  for (size_t i = 1; i < found.size(); ++i) sentences += cat("; ", found[i]);
  SINKSTREAM_CHECK(false, sentences);
}

}  // namespace sinkstream
