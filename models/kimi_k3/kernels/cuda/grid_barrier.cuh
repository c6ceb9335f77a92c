// A barrier over all blocks of a cooperative launch: a counter that only grows.
//
// cells[0] counts arrivals, the same number in every launch, so each launch finds where it starts without a reset.
// cells[1] is the health word: 0, or 1 + the number of a barrier at which a block gave up waiting. Nobody waits for
// ever: a block that gives up goes on and ends, its results are worthless, and the health word says so.
#pragma once
#include <stdint.h>

class GridBarrier {
public:
    // By the thread that arrives for its block, before its first arrival. `phases`: barriers of a launch.
    __device__ void start(unsigned long long* cells, int blocks, int phases) {
        cells_ = cells;
        blocks_ = blocks;
        const unsigned long long each = static_cast<unsigned long long>(blocks) * phases;
        // Whatever others have counted, this block has not yet: of this launch there are fewer than `each`.
        launch_ = load() / each;
        target_ = launch_ * each;
    }

    // 1 in the first launch on these cells, then 2, ...
    __device__ uint32_t epoch() const { return static_cast<uint32_t>(launch_) + 1; }

    // After a block barrier: everything that the block wrote before is visible to whoever waits. `phases`: at so many at once.
    __device__ void arrive(int phases = 1) {
        target_ += static_cast<unsigned long long>(phases) * blocks_;
        add(phases);
    }

    // Before a block barrier.
    __device__ void wait() {
        for (unsigned spin = 0; load() < target_; ++spin)
            if (spin == kSpins) {
                cells_[1] = 1 + target_ / blocks_;
                break;
            }
    }

private:
    // A poll takes about 0.7 us: a tenth of a second and more.
    static constexpr unsigned kSpins = 1u << 18;

    __device__ unsigned long long load() const {
        unsigned long long value;
        asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(cells_) : "memory");
        return value;
    }

    __device__ void add(unsigned long long count) const {
        asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(cells_), "l"(count) : "memory");
    }

    unsigned long long* cells_;
    unsigned long long launch_, target_;
    int blocks_;
};
