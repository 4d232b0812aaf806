// A thread that page-locks host memory, so that no thread of the program has to wait for it. It
// carries out one order at a time and decides nothing. It knows no Python and takes no lock of a
// device, and its calls are made in relaxed capture mode, as all of the driver's are. It begins
// with the first order; at exit it is left alone, and in a forked child it does not exist.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "driver.hpp"

namespace vdnn {

class PinWorker {
 public:
  explicit PinWorker(Driver& driver) : driver_(driver) {}
  // Waits for the order that is under way, and unpins what nobody took.
  ~PinWorker();
  PinWorker(const PinWorker&) = delete;
  PinWorker& operator=(const PinWorker&) = delete;

  // Precondition: every order before was taken. Waits for nothing.
  void order(std::size_t bytes);
  // What was ordered, once it is there; null if the machine refused it. Call it with no lock held.
  [[nodiscard]] void* take();

 private:
  enum class Order { kNone, kGiven, kCarriedOut };

  [[nodiscard]] bool start();
  void run();

  Driver& driver_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Order order_ = Order::kNone;
  std::size_t bytes_ = 0;
  void* host_ = nullptr;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace vdnn
