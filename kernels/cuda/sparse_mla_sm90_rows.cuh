// How the sm_90a sparse attention kernel brings the selected rows into wgmma's tiles: 8 warps, each
// with 8 rows of every chunk.
#pragma once

#include "kernels/cuda/sparse_mla_sm90_types.cuh"

namespace strata::cuda::sm90 {

// The chunks of a CTA, `count` of them: first, first + stride, ..., each with the chunk behind it
// when they come in pairs.
struct ChunkRange {
  int first, stride, count;
  bool pairs;
  __device__ __forceinline__ int Chunk(int k) const {
    return pairs ? first + (k >> 1) * stride + (k & 1) : first + k * stride;
  }
};

// Where rows lie. Lane l of a warp knows the place of its row l % 8.
struct RowPlaces {
  const Arguments& args;
  const int32_t* ids;
  const int32_t* table;
  int length;
  ChunkRange range;
  int warp, lane;

  // The id of the lane's row in the CTA's chunk k; -1 behind the last.
  __device__ __forceinline__ int Id(int k) const {
    const int column = range.Chunk(k) * kChunk + warp * kWarpRows + (lane & 7);
    int id = -1;
    if (k < range.count && column < args.columns) {
      asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(id) : "l"(ids + column));
    }
    return id;
  }
  // The row's place in the cache, page * 64 + cell; -1 when the id is not valid.
  __device__ __forceinline__ int Place(int id) const {
    if (!Valid(id)) return -1;
    return Page(id) * 64 + (id & 63);
  }
  __device__ __forceinline__ bool Valid(int id) const {
    return static_cast<unsigned>(id) < static_cast<unsigned>(length);
  }
  // The page of a valid id.
  __device__ __forceinline__ int Page(int id) const {
    int page = 0;
    if (Valid(id)) asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(page) : "l"(table + (id >> 6)));
    return page;
  }
  __device__ __forceinline__ const uint8_t* Address(int place) const {
    return args.cache + (place >> 6) * args.page_stride + (place & 63) * args.row_bytes;
  }
};

// fp8 and int8 rows: they arrive as they are stored, two chunks ahead, and become f16 tiles one
// step at a time, as the product with the values of the chunk before has finished with each.
//
// kOneLane: the copies of a warp's rows are asked for by one lane, one behind the other, which is
// quicker where nothing else is to be done, else by a lane each.
template <Format kFormat, bool kOneLane>
struct CodeLoader {
  const RowPlaces places;
  Small<false>* small;
  uint32_t tiles, codes;  // codes: of this warp, two chunks
  int first_step;         // steps become free from this one on

  __device__ __forceinline__ uint32_t Codes(int k, int r) const {
    return codes + (k & 1) * kWarpRows * kMaxCodeRow + r * kMaxCodeRow;
  }
  __device__ __forceinline__ uint32_t TileRow(int tile, int r) const {
    return tiles + tile * kTile + (places.warp * kWarpRows + r) * 128;
  }

  // Rows that have been looked up: of lane l, row l % 8. `valid` has a bit per row.
  struct Found {
    int page, cell;
    unsigned valid;
  };
  __device__ __forceinline__ Found Find(int id) const {
    return {places.Page(id), id & 63, __ballot_sync(~0u, places.Valid(id)) & 0xffu};
  }
  // Asks for the rows of chunk k; a row that is none is never read, and what lies in its place is
  // masked where it is taken. What the warp has read there before has arrived: it went on from
  // there to the tiles.
  __device__ __forceinline__ void Copy(int k, const Found& rows) const {
    if (k >= places.range.count) return;
    const int lane = places.lane, bytes = places.args.row_bytes;
    uint64_t* barrier = &small->landed[places.warp][k & 1];
    if (lane == 0) BarrierExpect(barrier, __popc(rows.valid) * bytes);
    __syncwarp();
    const uint8_t* source = places.Address(rows.page * 64 + rows.cell);
    if constexpr (kOneLane) {
      const uint8_t* from[kWarpRows];
#pragma unroll
      for (int r = 0; r < kWarpRows; ++r) {
        from[r] = reinterpret_cast<const uint8_t*>(
            __shfl_sync(~0u, reinterpret_cast<uint64_t>(source), r));
      }
      if (ElectLane()) {
#pragma unroll
        for (int r = 0; r < kWarpRows; ++r) {
          if (rows.valid >> r & 1u) CopyBulk(Codes(k, r), from[r], bytes, barrier);
        }
      }
      __syncwarp();
      return;
    }
    if (rows.valid >> lane & 1u) CopyBulk(Codes(k, lane), source, bytes, barrier);
  }

  // RoPE values to their tile, row facts; returns the row's four scales / unit as f16 (fp8).
  __device__ __forceinline__ uint2 StateFacts(int k, unsigned rows) const {
    const int lane = places.lane, r = lane & 7;
    const bool valid = (rows >> r & 1u) != 0;
    uint4 rope[2];
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const int row = (lane >> 3) + 4 * p;
      rope[p] = make_uint4(0, 0, 0, 0);
      if ((rows >> row & 1u) != 0 && places.args.has_rope) {
        rope[p] = LoadShared(Codes(k, row) + kLatent + 16 + (lane & 7) * 16);
      }
    }
    const uint4 bits = valid ? LoadShared(Codes(k, r) + kLatent) : make_uint4(0, 0, 0, 0);
    float log2_unit;
    uint2 ratios = make_uint2(0, 0);
    if constexpr (kFormat == Format::kFp8) {
      const float s[4] = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                          __uint_as_float(bits.w)};
      const float largest = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
      const uint32_t unit =
          (__float_as_uint(fminf(fmaxf(largest, 8.7e-19f), 1.1e18f)) + 0x7FFFFFu) & 0x7F800000u;
      const float inverse = __uint_as_float(0x7F000000u - unit);
      log2_unit = static_cast<float>(static_cast<int>(unit >> 23) - 127);
      ratios = make_uint2(Bits(__floats2half2_rn(s[0] * inverse, s[1] * inverse)),
                          Bits(__floats2half2_rn(s[2] * inverse, s[3] * inverse)));
    } else {
      const float scale = __uint_as_float(bits.x);
      // A scale that is no number makes NaN of the row, as its values would be.
      log2_unit = isfinite(scale) ? log2f(fminf(fmaxf(scale, 8.7e-19f), 1.1e18f)) : NAN;
    }
    BarrierWait(&small->facts_empty[0], (k & 1) ^ 1);
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const int row = (lane >> 3) + 4 * p;
      StoreShared(TileRow(8, row) + (((lane & 7) ^ row) << 4), rope[p]);
    }
    if (lane < kWarpRows) {
      small->log2_unit[places.warp * kWarpRows + lane] = valid ? log2_unit : -INFINITY;
    }
    BarrierArrive(&small->facts_full[0]);
    return ratios;
  }

  // 16 codes to the 32 bytes that quarter `quarter` of row `r` has in `tile`. The eight lanes of a
  // quarter hold eight rows: reads and writes touch every bank once.
  __device__ __forceinline__ void Store(int tile, int r, int quarter, uint4 v,
                                        __half2 ratio) const {
    uint2 x, y, z, w;
    if constexpr (kFormat == Format::kFp8) {
      x = Fp8ToF16(v.x, ratio), y = Fp8ToF16(v.y, ratio);
      z = Fp8ToF16(v.z, ratio), w = Fp8ToF16(v.w, ratio);
    } else {
      x = Int8ToF16(v.x), y = Int8ToF16(v.y);
      z = Int8ToF16(v.z), w = Int8ToF16(v.w);
    }
    const uint32_t at = TileRow(tile, r);
    StoreShared(at + ((2 * quarter ^ r) << 4), make_uint4(x.x, x.y, y.x, y.y));
    StoreShared(at + (((2 * quarter + 1) ^ r) << 4), make_uint4(z.x, z.y, w.x, w.y));
  }

  __device__ __forceinline__ void Run(int first_id) const {
    const int lane = places.lane, r = lane & 7, quarter = lane >> 3;
    const Found first = Find(first_id);
    const int second_id = places.Id(1);
    int id = places.Id(2);
    Copy(0, first);
    const Found second = Find(second_id);
    Copy(1, second);
    unsigned rows = first.valid, next_rows = second.valid;
    for (int k = 0; k < places.range.count; ++k) {
      // Both arrive while this chunk is brought.
      const Found later = Find(id);
      id = places.Id(k + 3);
      const bool valid = (rows >> r & 1u) != 0;
      BarrierWait(&small->landed[places.warp][k & 1], k >> 1 & 1);
      const uint2 ratios = StateFacts(k, rows);
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        const int step = (first_step + i) & 3;
        const uint32_t from = Codes(k, r) + step * 128 + quarter * 16;
        const uint4 none = make_uint4(0, 0, 0, 0);
        const uint4 low = valid ? LoadShared(from) : none,
                    high = valid ? LoadShared(from + 64) : none;
        const __half2 pair = Halves(step & 2 ? ratios.y : ratios.x);
        const __half2 ratio = step & 1 ? __high2half2(pair) : __low2half2(pair);
        BarrierWait(&small->empty[0][step], (k & 1) ^ 1);
        Store(step, r, quarter, low, ratio);
        Store(4 + step, r, quarter, high, ratio);
        __syncwarp();
        if (lane == 0) BarrierArrive(&small->full[0][step]);
      }
      Copy(k + 2, later);
      rows = next_rows, next_rows = later.valid;
    }
  }
};

// bf16 rows: multiplied as they are, so they arrive in their tiles, in the buffer that the chunk
// before leaves free.
struct Bf16Loader {
  const RowPlaces places;
  Small<true>* small;
  uint32_t tiles;

  // 16 bytes of the row at `place`, or zeros where there is none.
  __device__ __forceinline__ void Copy16(uint32_t target, int place, int offset) const {
    CopyAsync16(target, places.Address(max(place, 0)) + offset, place < 0 ? 0 : 16);
  }
  __device__ __forceinline__ void Copy(int buffer, int place) const {
    const int lane = places.lane, piece = lane & 7;
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const int r = (lane >> 3) + 4 * p, from = __shfl_sync(~0u, place, r);
      const uint32_t target = tiles + buffer * kTiles * kTile +
                              (places.warp * kWarpRows + r) * 128 + ((piece ^ r) << 4);
#pragma unroll
      for (int block = 0; block < 8; ++block) {  // 64 latents each
        Copy16(target + (block / 2 + 4 * (block & 1)) * kTile, from, block * 128 + piece * 16);
      }
      Copy16(target + 8 * kTile, places.args.has_rope ? from : -1, 2 * kLatent + piece * 16);
    }
    CopyCommit();
  }
  // Every 128-byte line of the warp's rows into the L2, 16 lanes a row.
  __device__ __forceinline__ void Prefetch(int place) const {
    const Arguments& args = places.args;
    const int line = places.lane & 15, lines = args.row_bytes / 128;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const int from = __shfl_sync(~0u, place, 2 * p + (places.lane >> 4));
      if (from >= 0 && line < lines) {
        PrefetchL2(args.cache + (from >> 6) * args.page_stride + (from & 63) * args.row_bytes +
                   line * 128);
      }
    }
  }

  __device__ __forceinline__ void Run(int first_id) const {
    const int lane = places.lane;
    int place = places.Place(first_id), next_id = places.Id(1);
    for (int k = 0; k < places.range.count; ++k) {
      const int buffer = k & 1;
      BarrierWait(&small->facts_empty[buffer], (k >> 1 & 1) ^ 1);
      for (int step = 0; step < kSteps; ++step) {
        BarrierWait(&small->empty[buffer][step], (k >> 1 & 1) ^ 1);
      }
      Copy(buffer, place);
      const int next = places.Place(next_id);
      next_id = places.Id(k + 2);
      Prefetch(next);
      if (lane < 8) {
        small->log2_unit[buffer * kChunk + places.warp * kWarpRows + lane] =
            place < 0 ? -INFINITY : 0.0f;
      }
      CopyWait<0>();
      BarrierArrive(&small->facts_full[buffer]);
      __syncwarp();
      for (int step = 0; step < kSteps; ++step) {
        if (lane == 0) BarrierArrive(&small->full[buffer][step]);
      }
      place = next;
    }
  }
};

}  // namespace strata::cuda::sm90
