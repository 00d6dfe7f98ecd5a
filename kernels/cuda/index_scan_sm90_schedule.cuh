// How the sm_90a index scan divides its work, on the device and from the lengths alone: all tiles
// of 64 keys of all units (some rows of a group) form one sequence, of which each CTA takes a
// piece.
#pragma once

#include "kernels/cuda/hopper.cuh"
#include "kernels/index_scan.h"

namespace strata::cuda {

constexpr int kTileBits = 6;
constexpr int kScanTile = 1 << kTileBits;  // keys

#if STRATA_SM90A

struct GroupTiles {
  int first_row, rows, sequence, longest, tiles, units;
};

// Inlined: a call is slower here, and ptxas 13.0 does not end when a kernel that moves registers
// between its warpgroups makes one.
__device__ __forceinline__ GroupTiles TilesOf(const IndexScan& op, int unit_bits, int group,
                                              int groups) {
  GroupTiles found{0, 0, 0, 0, 0, 0};
  if (group >= groups) return found;
  // A group is most often one row at the place of its own number: that row comes in the same round
  // trip as the bounds.
  const int guess = min(group, static_cast<int>(op.lengths.dim(0)) - 1);
  const int guessed_length = op.lengths(guess), guessed_sequence = op.rows.sequence(guess);
  found.first_row = op.rows.first_row(group);
  found.rows = op.rows.first_row(group + 1) - found.first_row;
  if (found.rows == 1 && found.first_row == group) {
    found.longest = guessed_length;
    found.sequence = guessed_sequence;
  } else if (found.rows > 0) {
    found.sequence = op.rows.sequence(found.first_row);
#pragma unroll 1
    for (int r = 0; r < found.rows; ++r)
      found.longest = max(found.longest, op.lengths(found.first_row + r));
  }
  found.longest = min(max(found.longest, 0), static_cast<int>(op.scores.dim(1)));
  found.units = (found.rows + (1 << unit_bits) - 1) >> unit_bits;
  found.tiles = (found.longest + kScanTile - 1) / kScanTile;
  return found;
}

__device__ __forceinline__ int InclusiveScan(int value, int lane) {
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const int other = __shfl_up_sync(~0u, value, d);
    if (lane >= d) value += other;
  }
  return value;
}

// Where a tile of the whole sequence lies. The whole warp calls, every lane gets the answer.
struct Place {
  int group, unit;  // unit of the group
  GroupTiles of;    // the group
  int tile;         // tile of the unit
};

// A CTA's part of the sequence.
struct Piece {
  int tiles;
  Place place;  // of the first
};

class Schedule {
 public:
  // `mine`: the lane's of the first 32 groups, from First(). A unit has 1 << unit_bits rows.
  // A group that is alone is known to every lane: the shuffles would delay the first copy.
  __device__ __forceinline__ Schedule(const IndexScan& op, int unit_bits, int lane,
                                      const GroupTiles& mine)
      : op_(op), unit_bits_(unit_bits), lane_(lane), groups_(Groups(op)), mine_(mine) {
    total_ = first_scan_ = mine_.tiles * mine_.units;
    if (groups_ == 1) return;
    first_scan_ = InclusiveScan(first_scan_, lane);
    total_ = __shfl_sync(~0u, first_scan_, 31);
#pragma unroll 1
    for (int g = 32; g < groups_; g += 32) {
      const GroupTiles more = TilesOf(op, unit_bits, g + lane, groups_);
      total_ += __reduce_add_sync(~0u, more.tiles * more.units);
    }
  }
  __device__ __forceinline__ static GroupTiles First(const IndexScan& op, int unit_bits, int lane) {
    const int groups = Groups(op);
    return TilesOf(op, unit_bits, groups == 1 ? 0 : lane, groups);
  }
  __device__ __forceinline__ Piece PieceOf(int cta, int ctas) const {
    const int base = total_ / ctas, rest = total_ - base * ctas,
              tiles = base + (cta < rest ? 1 : 0);
    return {tiles, tiles > 0 ? Find(cta * base + min(cta, rest)) : Place{}};
  }

  __device__ __forceinline__ Place Find(int position) const {
    if (groups_ == 1) return At(0, mine_, position);
    int before = 0;
    GroupTiles mine = mine_;
    int scan = first_scan_;
#pragma unroll 1
    for (int g = 0;; g += 32) {
      if (g > 0) {
        mine = TilesOf(op_, unit_bits_, g + lane_, groups_);
        scan = InclusiveScan(mine.tiles * mine.units, lane_);
      }
      const unsigned hit = __ballot_sync(~0u, before + scan > position);
      if (hit != 0) {
        const int at = __ffs(hit) - 1;
        const int inside = position - before - __shfl_sync(~0u, scan - mine.tiles * mine.units, at);
        return At(g + at, Broadcast(mine, at), inside);
      }
      before += __shfl_sync(~0u, scan, 31);
    }
  }
  // The next unit that has tiles; there is one.
  __device__ __forceinline__ void NextUnit(Place* place) const {
    place->tile = 0;
    if (++place->unit < place->of.units) return;
    place->unit = 0;
    do {
      ++place->group;
      place->of = TilesOf(op_, unit_bits_, place->group, groups_);
    } while (place->of.tiles * place->of.units == 0);
  }

 private:
  __device__ __forceinline__ static int Groups(const IndexScan& op) {
    return static_cast<int>(op.rows.first_row.dim(0)) - 1;
  }
  // Tile `inside` of a group.
  __device__ __forceinline__ static Place At(int group, const GroupTiles& of, int inside) {
    const int unit = of.units == 1 ? 0 : inside / of.tiles;
    return {group, unit, of, inside - unit * of.tiles};
  }
  __device__ __forceinline__ static GroupTiles Broadcast(const GroupTiles& mine, int lane) {
    return {__shfl_sync(~0u, mine.first_row, lane), __shfl_sync(~0u, mine.rows, lane),
            __shfl_sync(~0u, mine.sequence, lane),  __shfl_sync(~0u, mine.longest, lane),
            __shfl_sync(~0u, mine.tiles, lane),     __shfl_sync(~0u, mine.units, lane)};
  }
  const IndexScan& op_;
  int unit_bits_, lane_, groups_;
  GroupTiles mine_;
  int first_scan_, total_;
};

#endif  // STRATA_SM90A

}  // namespace strata::cuda
