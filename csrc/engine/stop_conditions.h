// Every condition that ends a sequence: an error, a cancel, a deadline, a token, a stop string, a
// length. What ends a sequence then is the engine's job.
#pragma once

#include <optional>

#include "engine/sequence.h"

namespace sinkstream {

// Why the sequence must end now, whatever its phase, if it must.
std::optional<FinishReason> early_finish(const Sequence& sequence, Clock::time_point now);

// Why the sequence ends with `token`, its latest, if it does. Stages the text that the token
// completes, unless the token is never shown.
std::optional<FinishReason> finish_at_token(Sequence& sequence, int32_t token,
                                            const TokenSet& end_tokens);

}  // namespace sinkstream
