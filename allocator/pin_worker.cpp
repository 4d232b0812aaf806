// Page-locking off the program's threads: see pin_worker.hpp.
#include "pin_worker.hpp"

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <utility>

#include "check.hpp"

namespace vdnn {
namespace {

// The program's signals are for the program's threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

PinWorker::~PinWorker() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (host_ != nullptr) driver_.unpin(host_, bytes_);
}

void PinWorker::order(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    VDNN_ASSERT(order_ == Order::kNone, "memory is ordered, and the last order was not taken");
    bytes_ = bytes;
    // No thread, no memory: whoever needs it pins it.
    order_ = start() ? Order::kGiven : Order::kCarriedOut;
  }
  changed_.notify_all();
}

bool PinWorker::start() {
  if (thread_.joinable()) return true;
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

void* PinWorker::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return order_ == Order::kCarriedOut; });
  order_ = Order::kNone;
  return std::exchange(host_, nullptr);
}

void PinWorker::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_over_ || order_ == Order::kGiven; });
    if (is_over_) return;
    const std::size_t bytes = bytes_;
    void* host = nullptr;
    lock.unlock();
    try {
      host = driver_.pin(bytes);
    } catch (const std::exception&) {
      host = nullptr;  // nobody needs it yet: who does asks again, and hears why
    }
    lock.lock();
    host_ = host;
    order_ = Order::kCarriedOut;
    changed_.notify_all();
  }
}

}  // namespace vdnn
