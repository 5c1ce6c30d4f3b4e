// Log-probabilities of tokens and of the best alternatives.
#pragma once

#include "common/base/status.h"
#include "common/core/request.h"
#include "common/sample/row_scan.h"

#include <cstdint>
#include <span>

namespace tandem::sample {

/// Log-probability of `token`, and the `top_count` best (token, logprob), of the model's own
/// distribution: log-softmax of the row before penalties, bias, temperature and cuts, so that it
/// does not depend on how the token was drawn. The sum is RowScan::mass(); the same bits on every
/// machine. Equal logits rank by id. kInternal when the row holds NaN or +inf or nothing finite.
/// `scan` is scratch: of the row's vocabulary.
Result<core::TokenLogprob> token_logprob(RowScan& scan,
                                         std::span<const float> logits,
                                         core::TokenId token,
                                         std::int32_t top_count);

}  // namespace tandem::sample
