// A valid engine state, and each way to break it, one at a time.
#include "engine/invariants.h"

#include "engine_fixture.h"

namespace sinkstream {
namespace {

using Sentences = std::vector<std::string>;

class InvariantsTest : public testing::Test {
 protected:
  static constexpr int64_t kLayers = 2;
  static constexpr Window kWindow{.sinks = 4, .window = 60};  // three pages in each layer

  // Added to `waiting`, and counted.
  Sequence& add_waiting(int64_t prompt) {
    auto stream = std::make_shared<TokenStream>(bell, std::make_shared<WakeList>());
    Request request = greedy_request(std::vector<int32_t>(static_cast<size_t>(prompt), 9), 1000);
    waiting.push_back(std::make_unique<Sequence>(std::move(request), kWindow, kLayers, nullptr,
                                                 stream, Clock::now()));
    ++gauges.waiting;
    return *waiting.back();
  }

  // Added to `running` with its pages, and counted. Nothing is prefilled.
  Sequence& add_running(int64_t prompt) {
    Sequence& sequence = add_waiting(prompt);
    running.push_back(std::move(waiting.back()));
    waiting.pop_back();
    --gauges.waiting;
    ++gauges.running;
    sequence.phase = Phase::kPrefill;
    give_cache(sequence, &pool, sequence.max_length);
    return sequence;
  }

  static void give_cache(Sequence& sequence, PagePool* from, int64_t max_length) {
    sequence.own_cache.emplace(from, kWindow, kLayers, max_length);
    sequence.cache = &*sequence.own_cache;
  }

  static int32_t third_page_of(const Sequence& sequence) {
    return sequence.cache->page_ids(sequence.cache->group(0))[2];
  }

  // Added to `running`, with its prompt of one token prefilled and `generated` tokens sampled.
  Sequence& add_decoding(int64_t generated) {
    Sequence& sequence = add_running(1);
    sequence.phase = Phase::kDecode;
    sequence.prefilled = 1;
    sequence.prompt.clear();
    sequence.stats.generated_tokens = generated;
    advance(sequence, generated);
    return sequence;
  }

  static void advance(Sequence& sequence, int64_t tokens) {
    sequence.cache->advance(tokens);
    sequence.stats.live_tokens = sequence.cache->live();
    sequence.stats.evicted_tokens = sequence.cache->evicted();
  }

  Sentences found() {
    std::vector<WaitingView> views;
    for (const auto& one : waiting) {
      views.push_back({.memory = one->memory, .prompt_left = one->prompt_tokens});
    }
    return violations(
        {waiting, running, sessions, pools, gauges, flights, free_seats, most_in_flight, seats,
         plan, views,
         StepLimits{
             .free = pools.free(), .max_sequences = 4, .max_tokens = 20, .prefill_chunk = 16}});
  }

  const std::shared_ptr<Doorbell> bell = std::make_shared<Doorbell>();
  PagePool pool{PageShape{.kv_heads = 1, .head_dim = 2}, 24};
  MemoryPools pools{&pool};
  std::deque<std::unique_ptr<Sequence>> waiting;
  std::vector<std::unique_ptr<Sequence>> running;
  std::vector<std::shared_ptr<Session>> sessions;
  EngineStats gauges{.pages = 24};
  Flights flights{4};
  std::vector<int64_t> free_seats;
  int64_t most_in_flight = 1;
  int64_t seats = 0;
  StepPlan plan;
};

TEST_F(InvariantsTest, HoldOfAnEngineWithNothingToDo) { EXPECT_EQ(found(), Sentences{}); }

TEST_F(InvariantsTest, HoldOfSequencesInEveryPhase) {
  add_decoding(500);  // far past its window
  add_decoding(1);
  add_decoding(7).phase = Phase::kParked;
  gauges.parked = 1;
  add_waiting(30);
  add_waiting(5);
  plan = {.admit = 1, .rows = {{0, 1, true}, {1, 1, true}, {3, 16, false}}};
  EXPECT_EQ(found(), Sentences{});
}

// ---- memory ----------------------------------------------------------------------------------

TEST_F(InvariantsTest, SeeAPageThatIsLost) {
  pool.acquire();
  EXPECT_EQ(found(), (Sentences{"page 0 has 0 holders, but the pool counts 1",
                                "0 pages are used, 0 spare and 23 free, but there are 24"}));
}

TEST_F(InvariantsTest, SeeAPageThatIsFreeAndHeld) {
  const int32_t page = third_page_of(add_running(5));
  pool.release(page);
  EXPECT_EQ(found(), (Sentences{"page 2 has 1 holders, but the pool counts 0",
                                "6 pages are used, 0 spare and 19 free, but there are 24"}));
  ASSERT_EQ(pool.acquire(), page);  // its holder will release it once more
}

TEST_F(InvariantsTest, SeeAPageWithTwoOwners) {
  const int32_t page = third_page_of(add_running(5));
  pool.release(page);
  add_running(5);  // takes that page at once
  EXPECT_EQ(found(), (Sentences{"page 2 has 2 holders, but the pool counts 1"}));
  pool.share(page);
  EXPECT_EQ(found(), Sentences{}) << "shared pages have as many owners as are counted";
}

TEST_F(InvariantsTest, SeeAStateSlotThatIsLost) {
  StatePool states(64, StatePool::lanes_for(1), 4);
  pools.states = &states;
  EXPECT_EQ(found(), Sentences{});
  states.acquire();
  EXPECT_EQ(found(), (Sentences{"0 state slots are used and 3 free, but there are 4"}));
}

TEST_F(InvariantsTest, SeeAPageOfASecondShapeThatIsLost) {
  PagePool wide({.kv_heads = 1, .head_dim = 16}, 2);
  pools.pages[1] = &wide;
  gauges.pages += 2;
  EXPECT_EQ(found(), Sentences{});
  wide.acquire();
  EXPECT_EQ(found(), (Sentences{"page 0 has 0 holders, but the pool counts 1",
                                "0 pages are used, 0 spare and 1 free, but there are 2"}));
}

TEST_F(InvariantsTest, CountThePagesOfSessionsAndTheirForks) {
  for (int i = 0; i < 2; ++i) sessions.push_back(std::make_shared<Session>(bell, kWindow, 64));
  sessions[0]->cache.emplace(&pool, kWindow, kLayers, kEndlessLength);
  sessions[0]->cache->advance(30);
  sessions[1]->cache.emplace(*sessions[0]->cache, kEndlessLength, 30);
  EXPECT_EQ(found(), Sentences{});
  sessions.pop_back();
  EXPECT_EQ(found(), Sentences{});
  const std::shared_ptr<Session> forgotten = sessions[0];
  sessions.clear();
  EXPECT_EQ(found().size(), 7u) << "six pages, and their sum";
}

TEST_F(InvariantsTest, SeeASequenceWithFewerPagesThanItWasAdmittedWith) {
  Sequence& sequence = add_running(5);
  give_cache(sequence, &pool, 40);
  EXPECT_EQ(found(), (Sentences{cat("running sequence 0 holds 4 pages, but was admitted with ",
                                    describe(sequence.memory))}));
}

// ---- sequences -------------------------------------------------------------------------------

TEST_F(InvariantsTest, SeeAWaitingSequenceInAnotherPhase) {
  add_waiting(5).phase = Phase::kDecode;
  EXPECT_EQ(found(), (Sentences{"waiting sequence 0 is in phase decode"}));
}

TEST_F(InvariantsTest, SeeAWaitingSequenceThatHoldsPages) {
  // A separate pool: pages that no running sequence holds would be a violation of their own.
  PagePool other{PageShape{.kv_heads = 1, .head_dim = 2}, 24};
  Sequence& sequence = add_waiting(5);
  give_cache(sequence, &other, sequence.max_length);
  EXPECT_EQ(found(), (Sentences{"waiting sequence 0 holds pages"}));
  sequence.own_cache.reset();
}

TEST_F(InvariantsTest, SeeAWaitingSequenceThatHasBegun) {
  add_waiting(5);
  add_waiting(5).prefilled = 2;
  EXPECT_EQ(found(), (Sentences{"waiting sequence 1 has prefilled 2 and generated 0 tokens"}));
}

TEST_F(InvariantsTest, SeeSequencesWhoseStreamsHaveEnded) {
  add_waiting(5).stream->finish(FinishReason::kCancelled, nullptr, {});
  add_decoding(3).stream->finish(FinishReason::kLength, nullptr, {});
  EXPECT_EQ(found(), (Sentences{"waiting sequence 0 has a stream that has ended",
                                "running sequence 0 has a stream that has ended"}));
}

TEST_F(InvariantsTest, SeeARunningSequenceThatHasFinished) {
  add_decoding(3).phase = Phase::kFinished;
  EXPECT_EQ(found(), (Sentences{"running sequence 0 is in phase finished"}));
}

TEST_F(InvariantsTest, SeeOneThatDecodesBeforeItsPromptIsRead) {
  add_running(5).phase = Phase::kDecode;
  EXPECT_EQ(found(), (Sentences{"running sequence 0 has prefilled 0 of 5 tokens in phase decode"}));
}

TEST_F(InvariantsTest, SeeAPromptThatIsKeptAfterItWasRead) {
  add_decoding(3).prompt = {9};
  EXPECT_EQ(
      found(),
      (Sentences{"running sequence 0 keeps 1 tokens of a prompt of which it has prefilled 1"}));
}

TEST_F(InvariantsTest, SeeARunningSequenceWithoutPages) {
  Sequence& sequence = add_running(5);
  sequence.own_cache.reset();
  sequence.cache = nullptr;
  EXPECT_EQ(found(), (Sentences{"running sequence 0 holds no pages"}));
}

TEST_F(InvariantsTest, SeeATokenThatIsMissingInTheCache) {
  add_decoding(3);
  add_decoding(3).stats.generated_tokens = 4;
  EXPECT_EQ(found(), (Sentences{"running sequence 1 has 3 tokens in its cache, but has prefilled 1 "
                                "and generated 4"}));
}

TEST_F(InvariantsTest, SeeEvictedTokensThatWereNotCounted) {
  Sequence& sequence = add_decoding(100);
  sequence.stats.evicted_tokens -= 1;
  EXPECT_EQ(found(), (Sentences{"running sequence 0 counts 64 live and 35 evicted tokens, but its "
                                "cache 64 and 36"}));
}

// ---- steps in flight -------------------------------------------------------------------------

class InvariantsAheadTest : public InvariantsTest {
 protected:
  InvariantsAheadTest() {
    most_in_flight = 2;
    seats = 4;
    free_seats = {3, 2, 1, 0};
  }

  // A decoding sequence with a seat.
  Sequence& add_sampling(int64_t generated) {
    Sequence& sequence = add_decoding(generated);
    sequence.seat = free_seats.back();
    free_seats.pop_back();
    return sequence;
  }

  // A step of one row.
  void launch(Sequence* sequence, int64_t drafts = 0) {
    flights.begin_launch(Clock::now())
        .rows.push_back({sequence, 1 + drafts, StepSpan::Wants::kToken, drafts});
    flights.end_launch();
    if (sequence == nullptr) return;
    sequence->cache->add_in_flight(1 + drafts);
    ++sequence->samples_in_flight;
    sequence->drafts_in_flight += drafts;
  }
};

TEST_F(InvariantsAheadTest, HoldOfASequenceThatIsAStepAhead) {
  launch(&add_sampling(500));
  add_sampling(3);
  plan.rows = {{0, 1, true}, {1, 1, true}};
  EXPECT_EQ(found(), Sentences{});
}

TEST_F(InvariantsAheadTest, HoldWhereADroppedRowIsInFlight) {
  launch(nullptr);
  add_sampling(3);
  EXPECT_EQ(found(), Sentences{});
}

TEST_F(InvariantsAheadTest, SeeAStepThatASequenceDoesNotKnowOf) {
  Sequence& sequence = add_sampling(3);
  launch(&sequence);
  sequence.cache->drop_in_flight();
  EXPECT_EQ(found(), (Sentences{"running sequence 0 counts 0 tokens, 1 samples and 0 drafts in "
                                "flight, but there are 1, 1 and 0"}));
  sequence.cache->add_in_flight(1);
  sequence.samples_in_flight = 0;
  EXPECT_EQ(found(), (Sentences{"running sequence 0 counts 1 tokens, 0 samples and 0 drafts in "
                                "flight, but there are 1, 1 and 0"}));
}

TEST_F(InvariantsAheadTest, SeeDraftsThatASequenceDoesNotKnowOf) {
  Sequence& sequence = add_sampling(3);
  launch(&sequence, 2);
  EXPECT_EQ(found(), Sentences{});
  sequence.drafts_in_flight = 0;
  EXPECT_EQ(found(), (Sentences{"running sequence 0 counts 3 tokens, 1 samples and 0 drafts in "
                                "flight, but there are 3, 1 and 2"}));
}

TEST_F(InvariantsAheadTest, SeeAPlanAheadOfDraftsThatMayNotStay) {
  launch(&add_sampling(3), 1);
  plan.rows = {{0, 1, true}};
  EXPECT_EQ(found(), (Sentences{"the plan's row for sequence 0 runs ahead of the result that it "
                                "depends on"}));
}

TEST_F(InvariantsAheadTest, SeeARowOfASequenceThatIsGone) {
  launch(&add_sampling(3));
  free_seats.push_back(running[0]->seat);
  running.pop_back();
  gauges.running = 0;
  EXPECT_EQ(found(), (Sentences{"a row in flight belongs to no running sequence"}));
}

TEST_F(InvariantsAheadTest, SeeAStepTooManyInFlight) {
  launch(nullptr);
  launch(nullptr);
  EXPECT_EQ(found(), (Sentences{"2 steps are in flight, but at most 1 may be"}));
  most_in_flight = 1;
  flights.begin_delivery();
  flights.end_delivery();
  EXPECT_EQ(found(), (Sentences{"1 steps are in flight, but at most 0 may be"}));
}

TEST_F(InvariantsAheadTest, SeeASeatThatIsLostOrHasTwoOwners) {
  free_seats.pop_back();
  EXPECT_EQ(found(), (Sentences{"seat 0 has 0 owners"}));
  free_seats.push_back(0);
  add_sampling(3);
  free_seats.push_back(0);
  EXPECT_EQ(found(), (Sentences{"seat 0 has 2 owners"}));
}

TEST_F(InvariantsAheadTest, SeeASequenceWithoutASeat) {
  add_decoding(3);
  EXPECT_EQ(found(), (Sentences{"a sequence or the free list has seat -1 of 4"}));
}

TEST_F(InvariantsAheadTest, SeeAPlanPastTheLastTokenThatIsInFlight) {
  launch(&add_sampling(999));  // of 1,000
  plan.rows = {{0, 1, true}};
  EXPECT_EQ(found(), (Sentences{"the plan's row for sequence 0 continues past what may be its "
                                "last token"}));
}

// ---- gauges ----------------------------------------------------------------------------------

TEST_F(InvariantsTest, SeeEveryGaugeThatIsWrong) {
  add_waiting(5);
  add_decoding(3);
  add_decoding(3).phase = Phase::kParked;
  gauges = {.waiting = 0, .running = 3, .parked = 0, .pages = 23};
  EXPECT_EQ(found(), (Sentences{"the gauge `waiting` shows 0, but there are 1",
                                "the gauge `running` shows 3, but there are 2",
                                "the gauge `parked` shows 0, but there are 1",
                                "the gauge `pages` shows 23, but there are 24"}));
}

// ---- the plan --------------------------------------------------------------------------------

TEST_F(InvariantsTest, SeeAPlanThatAdmitsMoreThanThereAre) {
  add_waiting(5);
  plan.admit = 2;
  EXPECT_EQ(found(), (Sentences{"the plan admits 2 of 1 waiting sequences"}));
}

TEST_F(InvariantsTest, SeeAPlanForMoreSequencesAndPagesThanThereIsRoomFor) {
  for (int i = 0; i < 4; ++i) add_decoding(3);
  const int64_t pages = add_waiting(5).memory.pages[0];
  plan.admit = 1;
  EXPECT_EQ(found(), (Sentences{"after the plan 5 sequences run, but at most 4 may",
                                cat("the plan takes ", pages, " pages, but 0 pages are free")}));
}

TEST_F(InvariantsTest, SeeTwoRowsOfOneSequence) {
  add_decoding(3);
  plan.rows = {{0, 1, true}, {0, 1, true}};
  EXPECT_EQ(found(), (Sentences{"the plan has two rows for sequence 0"}));
}

TEST_F(InvariantsTest, SeeARowOfNoSequence) {
  add_decoding(3);
  plan.rows = {{0, 1, true}, {1, 1, true}, {-1, 1, true}};
  EXPECT_EQ(found(), (Sentences{"the plan's row 1 is for sequence 1 of 1",
                                "the plan's row 2 is for sequence -1 of 1"}));
}

TEST_F(InvariantsTest, SeeARowThatWakesAParkedSequence) {
  add_decoding(3).phase = Phase::kParked;
  gauges.parked = 1;
  plan.rows = {{0, 1, true}};
  EXPECT_EQ(found(), (Sentences{"the plan's row for sequence 0 runs a parked sequence"}));
}

TEST_F(InvariantsTest, SeeRowsThatAreTooLongOrEmpty) {
  add_decoding(3);
  add_running(5);
  add_running(30);
  plan.rows = {{0, 2, true}, {1, 0, false}, {2, 17, false}};
  EXPECT_EQ(found(), (Sentences{"the plan's row for sequence 0 has 2 tokens of at most 1",
                                "the plan's row for sequence 1 has 0 tokens of at most 5",
                                "the plan's row for sequence 2 has 17 tokens of at most 16"}));
}

TEST_F(InvariantsTest, SeeLogitsThatAreNotNeededOrAreMissing) {
  add_decoding(3);
  add_running(5);
  plan.rows = {{0, 1, false}, {1, 3, true}};
  EXPECT_EQ(found(),
            (Sentences{"the plan's row for sequence 0 wants no logits with 0 prompt tokens left",
                       "the plan's row for sequence 1 wants logits with 5 prompt tokens left"}));
}

TEST_F(InvariantsTest, SeeAPlanBeyondTheBudget) {
  add_running(16);
  add_running(16);
  plan.rows = {{0, 16, true}, {1, 16, true}};
  EXPECT_EQ(found(), (Sentences{"the plan has 32 tokens, but the budget is 20"}));
}

// ---- where they are checked ------------------------------------------------------------------

TEST_P(EngineTest, ViolatedInvariantsEndTheEngineBeforeItsNextStep) {
  const auto stream = submit(greedy_request({5}, std::nullopt));
  read_tokens(*stream, 10);
  int32_t stolen = -1;
  engine().between_steps([&] { stolen = options.pools.pages[0]->acquire(); });
  EXPECT_TRUE(read_all(*stream).has_ended);
  try {
    stream->rethrow();
    ADD_FAILURE() << "nothing is thrown";
  } catch (const EngineDead& error) {
    EXPECT_NE(std::string(error.what())
                  .find(cat("page ", stolen,
                            " has 0 holders, but the pool "
                            "counts 1; ")),
              std::string::npos)
        << error.what();
  }
  engine().close();
  options.pools.pages[0]->release(stolen);
}

}  // namespace
}  // namespace sinkstream
