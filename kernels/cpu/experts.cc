// Mixture of experts: which experts a token goes to, and their MLPs.
//
// Idea: tokens are grouped by expert (a counting sort), each group is a batch for the panels of
// linear(), and rows are gathered and scattered where linear() packs and stores them. A task of the
// second product owns some columns of some tokens and adds the experts in order of their ids, so
// that a token's sums do not depend on who else is in the batch. Bound: few tokens read the weights
// of their experts once, at memory bandwidth; many run at the FMA peak.
#include "kernels/api/convert.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/tasks.h"

#include <cmath>
#include <limits>
#include <numeric>

namespace tandem::kernels {
namespace {

// A range of tokens gets its own tasks when its experts have this many rows each on average: fewer
// would read the weights too often.
constexpr std::size_t kRowsPerExpert = 32;

// Rows of expert e: [begin[e], begin[e + 1]) in ExpertMlpArgs::rows, in order of tokens.
struct Groups {
  std::size_t experts;
  std::uint32_t begin[kMaxExperts + 1];
};

void group_by_expert(const ExpertMlpArgs& args, Groups& groups) {
  groups.experts = args.gate->count();
  std::uint32_t next[kMaxExperts] = {};
  const std::size_t rows = args.tokens * args.top_k;
  for (std::size_t row = 0; row < rows; ++row)
    ++next[args.ids[row]];
  groups.begin[0] = 0;
  for (std::size_t e = 0; e < groups.experts; ++e) {
    groups.begin[e + 1] = groups.begin[e] + next[e];
    next[e] = groups.begin[e];
  }
  for (std::size_t row = 0; row < rows; ++row) {
    const std::uint32_t to = next[args.ids[row]]++;
    args.rows[to] = static_cast<std::int32_t>(row / args.top_k);
    args.row_weights[to] = args.weights[row];
  }
}

// Groups cut into blocks of at most `rows` rows: those of expert e are [first[e], first[e + 1]).
struct Blocks {
  std::size_t rows;
  std::uint32_t first[kMaxExperts + 1];

  Blocks(const Groups& groups, std::size_t rows_max) : rows(rows_max) {
    first[0] = 0;
    for (std::size_t e = 0; e < groups.experts; ++e) {
      const std::size_t size = groups.begin[e + 1] - groups.begin[e];
      first[e + 1] = first[e] + static_cast<std::uint32_t>((size + rows - 1) / rows);
    }
  }

  [[nodiscard]] std::size_t expert_of(const Groups& groups, std::size_t block) const {
    const auto* end = first + groups.experts + 1;
    return static_cast<std::size_t>(std::upper_bound(first, end, block) - first) - 1;
  }
};

cpu::LinearBlock block_of(const cpu::Kernels& kernels,
                          const PackedWeight& weight,
                          std::size_t expert,
                          ThreadPool& pool,
                          std::size_t worker) {
  cpu::LinearBlock block{};
  block.weight = weight.data(expert);
  block.panel_bytes = cpu::panel_bytes(weight.k(), weight.format());
  block.scheme = weight.scheme();
  block.dtype = weight.dtype();
  block.k = weight.k();
  block.n = weight.n();
  block.read_order = kernels.read_order;
  block.scratch = reinterpret_cast<float*>(pool.scratch(worker));
  return block;
}

// inner[row, :] = silu(gate x) * (up x), in rows of 2 * inner floats of which the first half
// counts.
void gate_up(const ExpertMlpArgs& args,
             const Groups& groups,
             const cpu::Kernels& kernels,
             ThreadPool& pool) {
  const std::size_t hidden = args.gate->k();
  const std::size_t inner = args.gate->n();
  const std::size_t rows = args.tokens * args.top_k;
  const std::size_t panels = cpu::panel_count(inner);
  const Blocks blocks(groups, cpu::row_block(rows, *args.gate, kernels));
  const std::size_t count = blocks.first[groups.experts];
  const std::size_t macs = rows / count * hidden * panels * 2 * cpu::kPanel;
  const std::size_t step =
      cpu::panel_step(cpu::most_tasks(pool, rows / count, cpu::kLongTasks), count, macs, panels);
  const std::size_t columns = (panels + step - 1) / step;
  pool.parallel_for(count * columns, [&](std::size_t task, std::size_t worker) {
    const std::size_t index = task / columns;
    const std::size_t expert = blocks.expert_of(groups, index);
    const std::size_t first = groups.begin[expert] + (index - blocks.first[expert]) * blocks.rows;
    cpu::LinearBlock block = block_of(kernels, *args.gate, expert, pool, worker);
    block.x = args.x;
    block.x_stride = stride_or(args.x_stride, hidden);
    block.x_rows = args.rows + first;
    block.rows = std::min<std::size_t>(blocks.rows, groups.begin[expert + 1] - first);
    block.panel_begin = task % columns * step;
    block.panel_end = std::min(block.panel_begin + step, panels);
    block.y = args.inner + first * 2 * inner;
    block.y_stride = 2 * inner;
    kernels.linear(block);
    block.packed = true;
    block.weight = args.up->data(expert);
    block.y += inner;
    kernels.linear(block);
    const std::size_t column = block.panel_begin * cpu::kPanel;
    const std::size_t end = std::min(block.panel_end * cpu::kPanel, inner);
    for (std::size_t row = first; row < first + block.rows; ++row) {
      float* gate = args.inner + row * 2 * inner + column;
      kernels.silu_mul_row(gate, gate + inner, gate, end - column);
    }
  });
}

// y[token, :] += weight * (down inner[row, :]) for every row of the token, by rising expert.
void down(const ExpertMlpArgs& args,
          const Groups& groups,
          const cpu::Kernels& kernels,
          ThreadPool& pool) {
  const std::size_t hidden = args.gate->k();
  const std::size_t inner = args.gate->n();
  const std::size_t rows = args.tokens * args.top_k;
  const std::size_t panels = cpu::panel_count(hidden);
  const std::size_t most = cpu::most_tasks(pool, rows / groups.experts, cpu::kLongTasks);
  const std::size_t ranges =
      std::clamp<std::size_t>(rows / (kRowsPerExpert * groups.experts), 1, most);
  const std::size_t macs = rows / ranges * inner * panels * cpu::kPanel;
  const std::size_t step = cpu::panel_step(most, ranges, macs, panels);
  const std::size_t columns = (panels + step - 1) / step;
  const std::size_t block_rows = cpu::row_block(rows, *args.down, kernels);
  pool.parallel_for(ranges * columns, [&](std::size_t task, std::size_t worker) {
    const auto token_begin = static_cast<std::int32_t>(args.tokens * (task / columns) / ranges);
    const auto token_end = static_cast<std::int32_t>(args.tokens * (task / columns + 1) / ranges);
    for (std::size_t expert = 0; expert < groups.experts; ++expert) {
      const std::int32_t* group_end = args.rows + groups.begin[expert + 1];
      const std::int32_t* first = args.rows + groups.begin[expert];
      first = std::lower_bound(first, group_end, token_begin);
      const std::int32_t* end = std::lower_bound(first, group_end, token_end);
      for (; first < end; first += block_rows) {
        const auto row = static_cast<std::size_t>(first - args.rows);
        cpu::LinearBlock block = block_of(kernels, *args.down, expert, pool, worker);
        block.x = args.inner + row * 2 * inner;
        block.x_stride = 2 * inner;
        block.rows = std::min(block_rows, static_cast<std::size_t>(end - first));
        block.panel_begin = task % columns * step;
        block.panel_end = std::min(block.panel_begin + step, panels);
        block.y = args.y;
        block.y_stride = stride_or(args.y_stride, hidden);
        block.y_rows = first;
        block.row_scale = args.row_weights + row;
        block.accumulate = true;
        kernels.linear(block);
      }
    }
  });
}

void route_row(const RouteArgs& args, const cpu::Kernels& kernels, std::size_t token) {
  const float* logits = args.logits + token * args.experts;
  std::int32_t* ids = args.ids + token * args.top_k;
  float* weights = args.weights + token * args.top_k;
  const float max = kernels.max(logits, args.experts);
  const double total = kernels.exp_sum(logits, args.experts, max);
  if (std::isnan(total)) {
    std::iota(ids, ids + args.top_k, 0);
    std::fill_n(weights, args.top_k, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  TopEntry best[kMaxExperts];
  (void)top_k({logits, args.experts}, args.top_k, best);
  double exps[kMaxExperts];
  double sum = 0;
  for (std::size_t r = 0; r < args.top_k; ++r) {
    exps[r] = kernels.exp_sum(&best[r].value, 1, max);
    sum += exps[r];
  }
  for (std::size_t r = 0; r < args.top_k; ++r) {
    ids[r] = best[r].id;
    weights[r] = static_cast<float>(exps[r] / (args.normalize ? sum : total));
  }
}

}  // namespace

void CpuBackend::route(const RouteArgs& args, ThreadPool& pool) const {
  cpu::for_rows(pool, args.tokens, args.experts * 16, [&](std::size_t token) {
    route_row(args, kernels_, token);
  });
}

void CpuBackend::expert_mlp(const ExpertMlpArgs& args, ThreadPool& pool) const {
  if (args.tokens == 0) return;
  Groups groups;
  group_by_expert(args, groups);
  gate_up(args, groups, kernels_, pool);
  down(args, groups, kernels_, pool);
}

}  // namespace tandem::kernels
