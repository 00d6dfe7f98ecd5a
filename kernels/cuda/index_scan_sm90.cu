// The index scan on sm_90a: bulk copies of whole pages, warpgroup matrix products, a schedule made
// on the device.
//
// All tiles of 64 keys of all units (some rows of a group) form one sequence; each CTA takes an
// equal contiguous piece of it.
//
// - Warps 0 to 3 find the piece.
// - Warp 0 walks it and keeps a ring of tiles in flight: one bulk copy per page, bytes as stored.
// - Warps 1 to 3 bring a unit's queries to shared memory when the CTA enters it.
// - Three warpgroups take the tiles in turn: keys from shared memory to registers (operand A),
//   queries from shared memory (operand B, all heads of a block of rows at once), then relu,
//   weights and the sum over heads in registers, the key's scale last. Each counts its own tiles;
//   the products of one overlap what the others do around theirs.
//
// A dot product does not care in which order its dimensions are added up, as long as both sides use
// one order: a thread takes 16 consecutive bytes of a key for four matrix products, and the queries
// are stored in the order that results.
#include <algorithm>
#include <bit>

#include "kernels/cuda/check.h"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/index_scan_sm90_schedule.cuh"
#include "kernels/cuda/index_scan_unit.cuh"
#include "kernels/cuda/index_scan_variants.h"
#include "kernels/order.h"

namespace strata::cuda {

namespace {

constexpr int kMathGroups = 3;
constexpr int kThreads = 128 * (1 + kMathGroups);
constexpr int kMaxStages = 9;  // more in flight crowds the L2
constexpr int kQueue = 8;      // units whose queries are asked for ahead
[[maybe_unused]] constexpr int kLoaders = 96;

struct Launch {
  IndexScan op;
  int stages;       // tiles in flight per CTA
  int unit_bits;    // a unit has 1 << unit_bits rows
  int pages_bits;   // a tile has 1 << pages_bits pages
  int query_bytes;  // of shared memory
  int page_bytes;   // of one page's keys and scales
  int slot_bytes;   // of one tile
};

// A unit in a CTA's walk. Tiles are numbered along the walk: number n is the unit's tile
// n + tile_offset.
struct WalkedUnit {
  int first_row, rows;  // no rows: the walk has ended
  int tile_offset, end;
};

// Shared memory behind the queries and the ring.
struct alignas(16) Control {
  float weights[kMaxGroupRows * 64];  // of a row: by lane of a quad, then by head
  WalkedUnit queue[kQueue];
  WalkedUnit unit;  // whose queries are in shared memory
  int lengths[kMaxGroupRows];
  int tiles;  // of the whole walk
  uint64_t full[kMaxStages], empty[kMaxStages];
  uint64_t queue_full[kQueue], queue_empty[kQueue];
  uint64_t query_full, query_empty, planned;
};

#if STRATA_SM90A

// A place in a ring that many visitors walk in the same order.
struct RingPlace {
  int index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance(int by, int size) {
    index += by;
    if (index >= size) index -= size, parity ^= 1u;
  }
};

// The unit that a walk of `tiles` enters at `place`, after `walked` tiles.
__device__ __forceinline__ WalkedUnit UnitAt(const Launch& launch, const Place& place, int walked,
                                             int tiles) {
  const int first_row = place.of.first_row + (place.unit << launch.unit_bits);
  return {first_row, min(1 << launch.unit_bits, place.of.first_row + place.of.rows - first_row),
          place.tile - walked, min(walked + place.of.tiles - place.tile, tiles)};
}

class Producer {
 public:
  __device__ __forceinline__ Producer(const Launch& launch, Control& control, std::byte* ring,
                                      int lane)
      : launch_(launch), control_(control), ring_(ring), lane_(lane), policy_(EvictFirstPolicy()) {}

  // Those who bring the queries know the first unit.
  __device__ __forceinline__ void Run(const Schedule& schedule, const Piece& piece) {
    if (lane_ == 0) {
      control_.tiles = piece.tiles;
      BarrierArrive(&control_.planned);
    }
    __syncwarp();
    Place place = piece.place;
    for (int walked = 0; walked < piece.tiles;) {
      const WalkedUnit unit = UnitAt(launch_, place, walked, piece.tiles);
      if (walked > 0) Announce(unit);
      Tiles(place, place.tile + unit.end - walked);
      walked = unit.end;
      if (walked < piece.tiles) schedule.NextUnit(&place);
    }
    Announce({0, 0, 0, 0});
  }

 private:
  __device__ __forceinline__ void Announce(const WalkedUnit& unit) {
    BarrierWait(&control_.queue_empty[queue_at_.index], queue_at_.parity ^ 1u);
    if (lane_ == 0) {
      control_.queue[queue_at_.index] = unit;
      BarrierArrive(&control_.queue_full[queue_at_.index]);
    }
    __syncwarp();
    queue_at_.Advance(1, kQueue);
  }

  // A lane holds one entry of the block table; a tile takes as many lanes as it has pages.
  __device__ __forceinline__ void Tiles(const Place& place, int last) {
    const IndexScan& op = launch_.op;
    const int bits = launch_.pages_bits, pages = 1 << bits, per_page = kScanTile >> bits,
              batch = 32 >> bits;
    const int32_t* table = op.keys.block_table.row(place.of.sequence);
    const int page_count = (place.of.longest + per_page - 1) >> (kTileBits - bits);
    const int mine = lane_ >> bits, page = lane_ & (pages - 1);
    const auto entry = [&](int tile) {
      const int at = tile * pages + page;
      return tile < last && at < page_count ? __ldg(table + at) : -1;
    };
    int next = entry(place.tile + mine);
#pragma unroll 1
    for (int first = place.tile; first < last; first += batch) {
      const int id = next;
      next = entry(first + batch + mine);
      const int count = min(batch, last - first);
      for (int i = 0; i < count; ++i) {
        BarrierWait(&control_.empty[at_.index], at_.parity ^ 1u);
        if (lane_ == i * pages) {
          BarrierExpect(&control_.full[at_.index],
                        static_cast<uint32_t>(min(pages, page_count - (first + i) * pages) *
                                              launch_.page_bytes));
        }
        if (pages > 1) __syncwarp();
        if (mine == i && id >= 0) {
          const std::byte* source = op.keys.base + static_cast<int64_t>(id) * op.keys.page_stride;
          std::byte* target = ring_ + at_.index * launch_.slot_bytes + page * launch_.page_bytes;
          BulkCopy(target, source, static_cast<uint32_t>(launch_.page_bytes),
                   &control_.full[at_.index], policy_);
        }
        __syncwarp();
        at_.Advance(1, launch_.stages);
      }
    }
  }

  const Launch& launch_;
  Control& control_;
  std::byte* ring_;
  int lane_;
  uint64_t policy_;
  RingPlace at_, queue_at_;
};

// Warps 1 to 3: the queries, weights and lengths of each unit the CTA enters; `unit` is the first.
template <int kRowBytes, int kHeads, int kBlockRows>
__device__ __forceinline__ void LoadQueries(const Launch& launch, Control& control,
                                            std::byte* queries, int thread, WalkedUnit unit) {
  constexpr int kPieces = kRowBytes / 16, kPanels = kRowBytes / 128, kColumns = kHeads * kBlockRows;
  const IndexScan& op = launch.op;
  const int heads = static_cast<int>(op.query.dim(1));
  const int64_t unit_bytes = kRowBytes / 128;  // bytes of one query value
  RingPlace at;
  uint32_t parity = 1;
  while (unit.rows > 0) {
    const int columns = (unit.rows + kBlockRows - 1) / kBlockRows * kColumns;
    const std::byte* source = static_cast<const std::byte*>(op.query.data);
    const auto load = [&](int i) {
      const int column = i / kPieces, row = column / kHeads, head = column % kHeads;
      uint4 value = make_uint4(0, 0, 0, 0);
      if (row < unit.rows && head < heads) {
        value = __ldg(reinterpret_cast<const uint4*>(
            source +
            ((unit.first_row + row) * op.query.stride[0] + head * op.query.stride[1]) * unit_bytes +
            i % kPieces * 16));
      }
      return value;
    };
    constexpr int kBatch = 6;  // pieces of 16 bytes a thread: 9 KB in flight before the first wait
#pragma unroll 1
    for (int first = thread; first < columns * kPieces; first += kLoaders * kBatch) {
      uint4 pieces[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (first + b * kLoaders < columns * kPieces) pieces[b] = load(first + b * kLoaders);
      }
      if (first == thread) {
        const auto weight_of = [&](int i) {
          const int row = i / kHeads, head = i % kHeads;
          return row < unit.rows && head < heads ? op.weights(unit.first_row + row, head) : 0.0f;
        };
        const auto set_weight = [&](int i, float weight) {
          const int row = i / kHeads, head = i % kHeads;
          const int place = head % 8 / 2 * (kHeads / 4) + head / 8 * 2 + head % 2;
          control.weights[row * kHeads + place] = weight;
        };
        // In the round trip of the queries: the length of the thread's row and a weight.
        const int length = thread < unit.rows ? op.lengths(unit.first_row + thread) : 0;
        const float weight = kBlockRows == 1 ? weight_of(thread) : 0.0f;
        BarrierWait(&control.query_empty, parity);
        parity ^= 1u;
        if (thread == 0) control.unit = unit;
        if (thread < kMaxGroupRows)
          control.lengths[thread] = min(length, static_cast<int>(op.scores.dim(1)));
        if constexpr (kBlockRows == 1) {
          static_assert(kColumns <= kLoaders);
          if (thread < kColumns) set_weight(thread, weight);
        } else {
#pragma unroll 1
          for (int i = thread; i < columns; i += kLoaders) set_weight(i, weight_of(i));
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int i = first + b * kLoaders;
        if (i >= columns * kPieces) continue;
        const int column = i / kPieces, piece = i % kPieces, quad = piece & 3, chunk = piece >> 2;
        std::byte* panel = queries +
                           ((column / kColumns) * kPanels + (chunk >> 1)) * (kColumns * 128) +
                           column % kColumns * 128;
        const uint32_t words[4] = {pieces[b].x, pieces[b].y, pieces[b].z, pieces[b].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int place = (2 * j + (chunk & 1)) ^ (column & 7);
          *reinterpret_cast<uint32_t*>(panel + place * 16 + quad * 4) = words[j];
        }
      }
    }
    FenceAsync();
    BarrierArrive(&control.query_full);
    BarrierWait(&control.queue_full[at.index], at.parity);
    unit = control.queue[at.index];
    BarrierArrive(&control.queue_empty[at.index]);
    at.Advance(1, kQueue);
  }
}

// Adds the scores of a warp to their rows' histograms, equal bins of a row at once.
__device__ __forceinline__ void CountScore(const IndexScan& op, int row, float score, bool valid,
                                           int lane) {
  const uint32_t bin = OrderKey(FloatToBits(score)) >> 21;
  const unsigned same =
      __match_any_sync(~0u, valid ? static_cast<uint64_t>(row) << 32 | bin : ~uint64_t{0});
  if (valid && lane == __ffs(same) - 1)
    atomicAdd(&op.histogram(row, bin), static_cast<uint32_t>(__popc(same)));
}

// Sums of the four lanes of a quad, for kRows rows of the two keys that they share: the lane ends
// with kOut = kRows / 2 of the rows (one, in two lanes, when there is one) for one of the keys.
// Every sum is (lane 0 + lane 1) + (lane 2 + lane 3).
template <int kRows, int kOut>
__device__ __forceinline__ void SumQuad(const float (&low)[kRows], const float (&high)[kRows],
                                        int quad, float (&out)[kOut]) {
  const bool odd = (quad & 1) != 0, upper = (quad & 2) != 0;
  float pair[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    pair[r] = (odd ? high[r] : low[r]) + __shfl_xor_sync(~0u, odd ? low[r] : high[r], 1);
  if constexpr (kRows == 1) {
    out[0] = pair[0] + __shfl_xor_sync(~0u, pair[0], 2);
  } else {
#pragma unroll
    for (int i = 0; i < kOut; ++i) {
      out[i] = (upper ? pair[i + kOut] : pair[i]) +
               __shfl_xor_sync(~0u, upper ? pair[i] : pair[i + kOut], 2);
    }
  }
}

// Warpgroup `group` scores every kMathGroups-th tile of the walk.
template <int kRowBytes, int kHeads, int kBlockRows>
__device__ __forceinline__ void Score(const Launch& launch, Control& control,
                                      const std::byte* queries, const std::byte* ring, int group,
                                      int thread) {
  constexpr bool kFp8 = kRowBytes == 128, kWindow = kBlockRows > 1;
  constexpr int kColumns = kHeads * kBlockRows, kSteps = kRowBytes / 32, kPanels = kRowBytes / 128;
  constexpr int kPieces = kSteps / 2;  // of 16 bytes that a thread takes of a key
  constexpr int kOut = kWindow ? kBlockRows / 2 : 1;
  const IndexScan& op = launch.op;
  const int lane = thread & 31, quad = lane & 3;
  const int row = (thread >> 5) * 16 + (lane >> 2);  // and row + 8: the keys this thread multiplies
  const int written = row + 8 * (quad & 1);          // the key whose scores it writes
  const int first_out = kWindow ? (quad >> 1) * kOut : 0;  // of those of a block
  const int per_page = kScanTile / static_cast<int>(op.keys.layout.kpool);
  const auto offset = [&](int key) {
    return key / per_page * launch.page_bytes + key % per_page * kRowBytes;
  };
  const int offset0 = offset(row) + quad * 16, offset1 = offset(row + 8) + quad * 16;
  const int scale_offset =
      written / per_page * launch.page_bytes + per_page * kRowBytes + written % per_page * 4;

  RingPlace at;
  at.index = group;
  uint4 low[kPieces], high[kPieces];  // the tile's keys, as stored
  float key_scale = 1.0f;
  uint64_t* taken = nullptr;  // the barrier of its place
  const auto load = [&] {
    BarrierWait(&control.full[at.index], at.parity);
    const std::byte* slot = ring + at.index * launch.slot_bytes;
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      low[c] = *reinterpret_cast<const uint4*>(slot + offset0 + c * 64);
      high[c] = *reinterpret_cast<const uint4*>(slot + offset1 + c * 64);
    }
    if (kFp8) key_scale = *reinterpret_cast<const float*>(slot + scale_offset);
    taken = &control.empty[at.index];
    at.Advance(kMathGroups, launch.stages);
  };
  // Frees the place, behind the issue of the products, which have waited for what load() has read.
  // An arrival alone does not keep a copy of keys that are in the L2 from overtaking reads before
  // it.
  const auto release = [&] {
    FenceAsync();
    __syncwarp();
    if (lane == 0) BarrierArrive(taken);
  };

  int unit = -1;
  WalkedUnit walked{0, 0, 0, 0};
  float4 held[kHeads / 16];  // the weights and the length of a unit of one row
  int held_length = 0;
  BarrierWait(&control.planned, 0);
  const int tiles = control.tiles;
  if (group < tiles) load();
#pragma unroll 1
  for (int tile = group;; tile += kMathGroups) {
    // Every warpgroup enters every unit, or the others would wait for it.
    while (walked.end <= min(tile, tiles - 1)) {
      if (unit >= 0) BarrierArrive(&control.query_empty);
      ++unit;
      BarrierWait(&control.query_full, unit & 1);
      walked = control.unit;
      if constexpr (!kWindow) {
        held_length = control.lengths[0];
#pragma unroll
        for (int j = 0; j < kHeads / 16; ++j) {
          held[j] = *reinterpret_cast<const float4*>(control.weights + quad * (kHeads / 4) + 4 * j);
        }
      }
    }
    if (tile >= tiles) return;
    const int key = (tile + walked.tile_offset) * kScanTile + written;
    uint32_t a[kSteps][4];
#pragma unroll
    for (int c = 0; c < kPieces; ++c) {
      const int step = c / 2 * 4, half = c % 2 * 2;
      a[step][half] = low[c].x, a[step + 1][half] = low[c].y;
      a[step + 2][half] = low[c].z, a[step + 3][half] = low[c].w;
      a[step][half + 1] = high[c].x, a[step + 1][half + 1] = high[c].y;
      a[step + 2][half + 1] = high[c].z, a[step + 3][half + 1] = high[c].w;
    }
#pragma unroll 1
    for (int block = 0; block == 0 || (kWindow && block * kBlockRows < walked.rows); ++block) {
      float d[kColumns / 2];
      WarpgroupFence();
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint64_t b =
            SwizzledDescriptor(queries + (block * kPanels + s / 4) * (kColumns * 128)) +
            2 * (s % 4);
        WarpgroupProduct<kColumns, kFp8>(d, a[s], b, s != 0);
      }
      WarpgroupCommit();
      if (block == 0) release();
      const int first = block * kBlockRows + first_out;  // row of the unit
      float* target = op.scores.data + (walked.first_row + first) * op.scores.stride[0] + key;
      bool valid[kOut];
#pragma unroll
      for (int i = 0; i < kOut; ++i) {
        valid[i] = kWindow ? key < control.lengths[first + i] : quad < 2 && key < held_length;
      }
      WarpgroupWait(d, a);
      float low_sum[kBlockRows], high_sum[kBlockRows];
#pragma unroll
      for (int r = 0; r < kBlockRows; ++r) {
        const float* weights =
            control.weights + (block * kBlockRows + r) * kHeads + quad * (kHeads / 4);
        float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < kHeads / 16; ++j) {
          const float4 w = kWindow ? *reinterpret_cast<const float4*>(weights + 4 * j) : held[j];
          const int i = 8 * (r * (kHeads / 16) + j);
          sums[0] = fmaf(Relu(d[i]), w.x, sums[0]);
          sums[1] = fmaf(Relu(d[i + 1]), w.y, sums[1]);
          sums[2] = fmaf(Relu(d[i + 2]), w.x, sums[2]);
          sums[3] = fmaf(Relu(d[i + 3]), w.y, sums[3]);
          sums[0] = fmaf(Relu(d[i + 4]), w.z, sums[0]);
          sums[1] = fmaf(Relu(d[i + 5]), w.w, sums[1]);
          sums[2] = fmaf(Relu(d[i + 6]), w.z, sums[2]);
          sums[3] = fmaf(Relu(d[i + 7]), w.w, sums[3]);
        }
        low_sum[r] = sums[0] + sums[1];
        high_sum[r] = sums[2] + sums[3];
      }
      float score[kOut];
      SumQuad(low_sum, high_sum, quad, score);
#pragma unroll
      for (int i = 0; i < kOut; ++i) {
        if (kFp8) score[i] *= key_scale;
        if (valid[i]) target[i * op.scores.stride[0]] = score[i];
      }
      if (op.histogram.data != nullptr) {
#pragma unroll
        for (int i = 0; i < kOut; ++i)
          CountScore(op, walked.first_row + first + i, score[i], valid[i], lane);
      }
    }
    if (tile + kMathGroups < tiles) load();
  }
}

// The block table is read one round trip after the lengths, queries and weights as well: bring them
// to L2 meanwhile.
template <int kRowBytes>
__device__ __forceinline__ void Prefetch(const IndexScan& op, int first, int step) {
  const auto lines = [&](const void* data, int64_t bytes, int most) {
    const int count = static_cast<int>(min(bytes / 128, static_cast<int64_t>(most)));
#pragma unroll 1
    for (int i = first; i < count; i += step)
      PrefetchL2(static_cast<const std::byte*>(data) + i * 128);
  };
  lines(op.keys.block_table.data, op.keys.block_table.dim(0) * op.keys.block_table.stride[0] * 4,
        65536);
  lines(op.query.data, op.query.dim(0) * op.query.stride[0] * (kRowBytes / 128), 16384);
  lines(op.weights.data, op.weights.dim(0) * op.weights.stride[0] * 4, 4096);
}

#endif  // STRATA_SM90A

template <int kRowBytes, int kHeads, int kBlockRows>
__global__ void __launch_bounds__(kThreads, 1)
    ScanSm90Kernel(const __grid_constant__ Launch launch) {
#if STRATA_SM90A
  extern __shared__ std::byte shared[];
  std::byte* queries = shared + (1024 - SharedAddress(shared) % 1024) % 1024;
  std::byte* ring = queries + launch.query_bytes;
  Control& control = *reinterpret_cast<Control*>(ring + launch.stages * launch.slot_bytes);
  const int thread = static_cast<int>(threadIdx.x), warp = thread >> 5;
  const int lane = thread & 31;
  // The lengths are on their way while the barriers are made.
  GroupTiles first{};
  if (warp < 4) first = Schedule::First(launch.op, launch.unit_bits, lane);
  if (thread == 32) {
#pragma unroll 1
    for (int i = 0; i < launch.stages; ++i) {
      BarrierInit(&control.full[i], 1);
      BarrierInit(&control.empty[i], 4);
    }
    for (int i = 0; i < kQueue; ++i) {
      BarrierInit(&control.queue_full[i], 1);
      BarrierInit(&control.queue_empty[i], kLoaders);
    }
    BarrierInit(&control.query_full, kLoaders);
    BarrierInit(&control.planned, 1);
    BarrierInit(&control.query_empty, 128 * kMathGroups);
    FenceBarrierInit();
  }
  if (warp >= 4) {
    Prefetch<kRowBytes>(launch.op, static_cast<int>(blockIdx.x) * 128 * kMathGroups + thread - 128,
                        static_cast<int>(gridDim.x) * 128 * kMathGroups);
  }
  __syncthreads();
  LetDependentsLaunch();
  // The products of 128 columns need more registers than an even share.
  constexpr bool kUneven = kHeads * kBlockRows == 128;
  if (warp >= 4) {
    if constexpr (kUneven) TakeRegisters<152>();
    Score<kRowBytes, kHeads, kBlockRows>(launch, control, queries, ring, (thread - 128) >> 7,
                                         (thread - 128) & 127);
  } else {
    if constexpr (kUneven) GiveRegisters<56>();
    const Schedule schedule(launch.op, launch.unit_bits, lane, first);
    const Piece piece = schedule.PieceOf(static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    if (warp > 0) {
      const WalkedUnit unit =
          piece.tiles > 0 ? UnitAt(launch, piece.place, 0, piece.tiles) : WalkedUnit{0, 0, 0, 0};
      LoadQueries<kRowBytes, kHeads, kBlockRows>(launch, control, queries, thread - 32, unit);
    } else {
      Producer(launch, control, ring, thread).Run(schedule, piece);
    }
  }
#endif
}

template <int kRowBytes, int kHeads, int kBlockRows>
void LaunchScan(Launch launch, int multiprocessors, int shared_bytes, cudaStream_t stream) {
  const auto kernel = ScanSm90Kernel<kRowBytes, kHeads, kBlockRows>;
  const int blocks = ((1 << launch.unit_bits) + kBlockRows - 1) / kBlockRows;
  launch.query_bytes = blocks * kBlockRows * kHeads * kRowBytes;
  const int fixed = 1024 + launch.query_bytes + static_cast<int>(sizeof(Control));
  // A multiple of the warpgroups: then a place of the ring belongs to one of them, and none can run
  // a round ahead of it.
  const int fit = std::min((shared_bytes - fixed) / launch.slot_bytes, kMaxStages);
  launch.stages = fit / kMathGroups * kMathGroups;
  const int bytes = fixed + launch.stages * launch.slot_bytes;
  AllowSharedBytes(kernel, bytes, "IndexScan: shared memory size");
  kernel<<<multiprocessors, kThreads, bytes, stream>>>(launch);
  CheckCuda(cudaGetLastError(), "IndexScan sm90");
}

}  // namespace

void RunScanSm90(const IndexScan& op, int multiprocessors, int shared_bytes, cudaStream_t stream) {
  const KeyLayout& layout = op.keys.layout;
  const int64_t rows = op.query.dim(0), groups = op.rows.first_row.dim(0) - 1;
  if (rows == 0 || groups == 0) return;
  // Rows per unit: the mean of the groups, so that equal windows are read once; a longer group is
  // read in parts.
  const bool fp8 = layout.dtype == DType::kFp8E4M3;
  const bool wide = op.query.dim(1) > 32;
  const int64_t most = fp8 || !wide ? kMaxGroupRows : kMaxGroupRows / 2;
  int64_t per_unit = 1;
  while (per_unit < most && per_unit * groups < rows) per_unit *= 2;
  Launch launch{.op = op,
                .stages = 0,
                .unit_bits = std::countr_zero(static_cast<uint64_t>(per_unit)),
                .pages_bits = std::countr_zero(static_cast<uint64_t>(layout.kpool)),
                .query_bytes = 0,
                .page_bytes = static_cast<int>(layout.PageBytes()),
                .slot_bytes = static_cast<int>(layout.PageBytes() * layout.kpool)};
  // A block of rows is multiplied at once: up to 128 columns, whose products fit the registers.
  const auto wide_run = per_unit > 1 ? (fp8 ? LaunchScan<128, 64, 2> : LaunchScan<256, 64, 2>)
                                     : (fp8 ? LaunchScan<128, 64, 1> : LaunchScan<256, 64, 1>);
  const auto narrow_run = per_unit > 2   ? (fp8 ? LaunchScan<128, 32, 4> : LaunchScan<256, 32, 4>)
                          : per_unit > 1 ? (fp8 ? LaunchScan<128, 32, 2> : LaunchScan<256, 32, 2>)
                                         : (fp8 ? LaunchScan<128, 32, 1> : LaunchScan<256, 32, 1>);
  const auto run = wide ? wide_run : narrow_run;
  run(launch, multiprocessors, shared_bytes, stream);
}

}  // namespace strata::cuda
