// Pinned host memory: a budget, slabs grown in three steps, and a quarantine for what a copy may
// still read.
#include <cstring>
#include <utility>

#include "check.hpp"
#include "deaf_driver.hpp"
#include "host_pool.hpp"
#include "pool_contract.hpp"

namespace vdnn::test {
namespace {

constexpr std::size_t kUnit = HostPool::kAlignment;
constexpr std::size_t kUnits = 16;

struct Room {
  explicit Room(std::size_t budget_bytes, std::uint64_t seed = 0)
      : driver(make_host_driver({.capacity_bytes = 1 << 20, .seed = seed})),
        clock(*driver),
        pool(*driver, clock, std::make_shared<HostBudget>(budget_bytes)) {
    writer = clock.index_of(driver->create_stream());
  }
  void grow(std::size_t bytes) {
    const std::size_t slab_bytes = pool.reserve_slab(bytes);
    pool.add_slab(pool.pin(slab_bytes), slab_bytes);
  }
  std::unique_ptr<HostDriver> driver;
  StreamClock clock;
  HostPool pool;
  StreamIndex writer = 0;
};

class ContractPool {
 public:
  ContractPool() : room_(kUnits * kUnit) { room_.grow(kUnits * kUnit); }
  Piece take(std::size_t units) {
    void* const host = room_.pool.allocate(units * kUnit, room_.writer);
    if (host == nullptr) return {};
    return {reinterpret_cast<std::uintptr_t>(host) / kUnit, units};
  }
  void give_back(const Piece& piece) {
    room_.pool.free(reinterpret_cast<void*>(piece.begin * kUnit), Fence());
  }
  [[nodiscard]] std::size_t used_units() const { return room_.pool.used_bytes() / kUnit; }
  [[nodiscard]] static std::size_t limit_units() { return kUnits; }

 private:
  Room room_;
};

TEST(the_host_pool_keeps_the_contract_of_pools) { PoolContract<ContractPool>().run(); }

TEST(the_host_budget_is_never_passed) {
  Room room(kUnits * kUnit);
  room.grow(kUnit);
  EXPECT(room.pool.pinned_bytes() <= room.pool.budget_bytes());

  EXPECT_THROWS(HostMemoryError, room.pool.reserve_slab(kUnits * kUnit + 1));
  EXPECT(room.pool.pinned_bytes() <= room.pool.budget_bytes());
}

// Rule 5: a pin that is refused leaves everything as it was.
TEST(a_refused_pin_gives_its_budget_back) {
  Room room(kUnits * kUnit);
  const std::size_t slab_bytes = room.pool.reserve_slab(kUnit);
  room.driver->fail_at(Primitive::kPin, 1);
  EXPECT_THROWS(HostMemoryError, room.pool.pin(slab_bytes));

  room.pool.cancel_slab(slab_bytes);

  EXPECT(room.pool.pinned_bytes() == 0);
  room.grow(kUnit);
  EXPECT(room.pool.allocate(kUnit, room.writer) != nullptr);
}

// Rule 3: host bytes carry fences too.
TEST(freed_host_memory_is_written_again_only_behind_its_last_reader) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Room room(kUnit, seed);
    room.grow(kUnit);
    const StreamIndex reader = room.clock.index_of(room.driver->create_stream());
    auto* const host = static_cast<char*>(room.pool.allocate(kUnit, room.writer));
    std::memset(host, 1, kUnit);
    char seen = 0;
    room.driver->launch(room.clock.stream(reader), [&] { seen = host[123 * 8]; });
    room.pool.free(host, Fence(room.clock.record(reader)));

    void* const again = room.pool.allocate(kUnit, room.writer);
    EXPECT(again == host);
    room.driver->launch(room.clock.stream(room.writer), [&] { std::memset(host, 2, kUnit); });
    room.driver->synchronize(room.clock.event_for(room.clock.record(room.writer)).get());

    EXPECT(seen == 1);
    room.pool.free(again, Fence());
  }
}

// Page-locks nothing: only how much is asked for matters.
class CountedPins final : public ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  void* pin(std::size_t bytes) override {
    place_ += std::exchange(last_, bytes);
    return reinterpret_cast<void*>(place_);
  }

 private:
  [[nodiscard]] bool hears(Stream) const override { return true; }
  std::uintptr_t place_ = std::uintptr_t{1} << 40;
  std::size_t last_ = 0;
};

// No rounding to powers of two, and few slabs: each is a mapping of the process.
TEST(what_is_page_locked_is_hardly_more_than_what_is_away) {
  constexpr std::size_t kBlock = std::size_t{33} << 20;
  CountedPins driver(make_host_driver({.capacity_bytes = 1 << 20}));
  StreamClock clock(driver);
  HostPool pool(driver, clock, std::make_shared<HostBudget>(std::size_t{64} << 30));
  const StreamIndex writer = clock.index_of(driver.create_stream());
  int slabs = 0;

  for (int i = 0; i < 100; ++i) {
    while (pool.allocate(kBlock, writer) == nullptr) {
      const std::size_t ahead_bytes = pool.claim_ahead(kBlock);
      if (ahead_bytes > 0) {
        pool.add_slab(pool.await_ahead(), ahead_bytes);
        pool.end_claim();
      } else {
        const std::size_t slab_bytes = pool.reserve_slab(kBlock);
        pool.add_slab(pool.pin(slab_bytes), slab_bytes);
      }
      pool.order_ahead();
      ++slabs;
    }
  }

  EXPECT(pool.used_bytes() == 100 * kBlock);
  EXPECT(pool.pinned_bytes() <= 110 * kBlock);
  EXPECT(slabs < 50);
}

}  // namespace
}  // namespace vdnn::test
