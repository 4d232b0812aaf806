// What every pool of ours promises, frames, host memory and heap alike: what is given out overlaps
// nothing else that is out, the same request after everything came back is served again, counts
// return to where they were, and the limit is a limit.
#pragma once

#include <map>
#include <random>
#include <vector>

#include "test_case.hpp"

namespace vdnn::test {

// One piece that a pool gave out: `size` units from `begin`, whatever a unit is.
struct Piece {
  std::uintptr_t begin = 0;
  std::size_t size = 0;
};

// A Pool has: take(units) -> Piece, size 0 where there is none; give_back(Piece); used_units();
// limit_units().
template <typename Pool>
class PoolContract {
 public:
  void run() {
    gives_what_it_has_and_no_more();
    gives_again_what_came_back();
    never_gives_out_twice();
  }

 private:
  void gives_what_it_has_and_no_more() {
    Pool pool;
    std::vector<Piece> out;
    for (Piece piece = pool.take(1); piece.size > 0; piece = pool.take(1)) out.push_back(piece);

    EXPECT(pool.used_units() == pool.limit_units());
    EXPECT(out.size() == pool.limit_units());

    for (const Piece& piece : out) pool.give_back(piece);
    EXPECT(pool.used_units() == 0);
  }

  void gives_again_what_came_back() {
    Pool pool;
    for (int round = 0; round < 3; ++round) {
      const Piece all = pool.take(pool.limit_units());
      EXPECT(all.size == pool.limit_units());
      EXPECT(pool.take(1).size == 0);
      pool.give_back(all);
    }
  }

  void never_gives_out_twice() {
    Pool pool;
    std::mt19937 random(7);
    std::map<std::uintptr_t, Piece> out;
    for (int i = 0; i < 2000; ++i) {
      if (random() % 2 == 0 && !out.empty()) {
        const auto any = std::next(out.begin(), static_cast<long>(random() % out.size()));
        pool.give_back(any->second);
        out.erase(any);
        continue;
      }
      const Piece piece = pool.take(random() % 3 + 1);
      if (piece.size == 0) continue;
      const auto [added, is_new] = out.emplace(piece.begin, piece);
      EXPECT(is_new);
      const auto next = std::next(added);
      EXPECT(next == out.end() || piece.begin + piece.size <= next->first);
      EXPECT(added == out.begin() ||
             std::prev(added)->first + std::prev(added)->second.size <= piece.begin);
    }
    for (const auto& [begin, piece] : out) pool.give_back(piece);
    EXPECT(pool.used_units() == 0);
  }
};

}  // namespace vdnn::test
