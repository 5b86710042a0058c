// The conditions that end a running sequence: an error, a cancel, a deadline, a token, a stop
// string, a length. Ending it is the engine's job, which also ends sequences that want no token,
// cannot get memory or throw.
#pragma once

#include <optional>

#include "engine/sequence.h"

namespace sinkstream {

// Why the sequence must end now, in any phase; nullopt if it can continue.
std::optional<FinishReason> early_finish(const Sequence& sequence, Clock::time_point now);

// Why the sequence ends with `token`, its latest; nullopt if it does not. Stages the text that the
// token completes, unless the token is never shown.
std::optional<FinishReason> finish_at_token(Sequence& sequence, int32_t token,
                                            const TokenSet& end_tokens);

}  // namespace sinkstream
