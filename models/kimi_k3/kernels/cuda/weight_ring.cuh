// A ring of shared-memory slots through which one thread streams weights with bulk copies, ahead of everybody.
//
// Weights depend on nothing that is computed, so the producer never waits for a stage: it fills free slots in a fixed
// order through all stages of the block, also while the block waits at a grid barrier. Every consumer warp reads its
// part of each slot and releases it.
//
// So many copies are on their way at a time as the producer is told. A few keep the memory busy; with all slots on
// their way, whatever else the block asks memory for (a barrier's counter, activations) queues behind them for
// microseconds.
#pragma once
#include <stdint.h>

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// A copy that never comes ends the launch with an error, after seconds, instead of hanging the device.
__device__ __forceinline__ void wait_parity(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done, over;\n.reg .u32 spin;\n"
        "mov.u32 spin, 0;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra out;\n"
        "add.u32 spin, spin, 1;\n"
        "setp.gt.u32 over, spin, 1048576;\n"
        "@over trap;\n"
        "bra again;\n"
        "out:\n}"
        ::"r"(barrier), "r"(parity) : "memory");
}

// BYTES of a unit; slots lie PITCH bytes apart.
template <int COUNT, int BYTES, int PITCH = BYTES>
class WeightRing {
public:
    static constexpr int kBarrierBytes = 16 * COUNT;

    // `slots`: COUNT * PITCH bytes, 128-byte aligned; `barriers`: kBarrierBytes.
    __device__ WeightRing(void* slots, void* barriers)
        : slots_(shared_address(slots)), full_(shared_address(barriers)), empty_(full_ + 8 * COUNT) {}

    // By one thread, before a __syncthreads.
    __device__ void init(int consumer_warps) const {
        for (int slot = 0; slot < COUNT; ++slot) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full_ + 8 * slot) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty_ + 8 * slot), "r"(consumer_warps)
                         : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }

    // Producer: copies BYTES bytes from global memory into the next slot as soon as that is free. Weights are read
    // once a step, so they leave the L2 first. `ahead`, less than COUNT: copies on their way, this one included.
    __device__ void push(const void* source, uint32_t ahead) {
        const uint32_t barrier = next(ahead, BYTES);
        copy(slots_ + slot_ * PITCH, source, BYTES, barrier, read_once());
        advance();
    }

    // The same for a unit of PIECES pieces of `PIECE` bytes, side by side in global memory and `PIECE_PITCH` bytes apart in the
    // slot. `bytes`: how much of it there is; none is a slot that is full at once.
    template <int PIECES, int PIECE, int PIECE_PITCH>
    __device__ void push_pieces(const void* source, int bytes, uint32_t ahead) {
        const uint32_t barrier = next(ahead, bytes), slot = slots_ + slot_ * PITCH;
        const uint64_t policy = read_once();
        const char* from = static_cast<const char*>(source);
        if (bytes == PIECES * PIECE) {
#pragma unroll
            for (int i = 0; i < PIECES; ++i) copy(slot + i * PIECE_PITCH, from + i * PIECE, PIECE, barrier, policy);
        } else {
#pragma unroll 1
            for (int i = 0; i * PIECE < bytes; ++i)
                copy(slot + i * PIECE_PITCH, from + i * PIECE, min(PIECE, bytes - i * PIECE), barrier, policy);
        }
        advance();
    }

    // Consumer: the shared-memory address of the next slot, once it is full.
    __device__ uint32_t front() const {
        wait_parity(full_ + 8 * slot_, phase_);
        return slots_ + slot_ * PITCH;
    }

    // Consumer: the same of the slot `places` behind it, less than COUNT.
    __device__ uint32_t behind(uint32_t places) const {
        const bool wraps = slot_ + places >= COUNT;
        const uint32_t slot = wraps ? slot_ + places - COUNT : slot_ + places;
        wait_parity(full_ + 8 * slot, wraps ? phase_ ^ 1 : phase_);
        return slots_ + slot * PITCH;
    }

    // Consumer warp: this warp has read its part of the next `count` slots. The fence orders each lane's reads before the copy that
    // fills the slot again: that writes through another proxy, which the barrier alone does not hold back. Without it,
    // of some ten thousand launches on a GPU that switches between processes one multiplied with weights 13 units
    // further on.
    __device__ void pop(int count = 1) {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        for (int i = 0; i < count; ++i) {
            if ((threadIdx.x & 31) == 0)
                asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(empty_ + 8 * slot_) : "memory");
            advance();
        }
    }

private:
    // Waits until the next slot may be filled, and says how many bytes will come. Returns its barrier.
    __device__ uint32_t next(uint32_t ahead, int bytes) {
        wait_parity(empty_ + 8 * slot_, phase_ ^ 1);
        if (pushed_ >= ahead) {
            const bool wraps = slot_ < ahead;
            wait_parity(full_ + 8 * (wraps ? slot_ + COUNT - ahead : slot_ - ahead), wraps ? phase_ ^ 1 : phase_);
        }
        if (pushed_ < COUNT) ++pushed_;
        const uint32_t barrier = full_ + 8 * slot_;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
        return barrier;
    }

    __device__ static uint64_t read_once() {
        uint64_t policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        return policy;
    }

    __device__ static void copy(uint32_t to, const void* from, int bytes, uint32_t barrier, uint64_t policy) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
            ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
    }

    __device__ void advance() {
        if (++slot_ == COUNT) {
            slot_ = 0;
            phase_ ^= 1;
        }
    }

    uint32_t slots_, full_, empty_, slot_ = 0, phase_ = 0, pushed_ = 0;
};

__device__ __forceinline__ uint4 load_shared(uint32_t address) {
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(address));
    return value;
}
