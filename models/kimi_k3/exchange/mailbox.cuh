// Rows from rank to rank, without a collective: every rank owns a mailbox that its peers store into.
//
// A row is up to 1024 words of 16 bytes: seven 16-bit values and a 16-bit tag, in one store. The tag is how often the row
// has been exchanged, its lowest bit the slot. Whoever sees the tag that it waits for sees the values with it, so nothing
// is cleared, counted or fenced. What the protocol needs besides: a rank publishes a row's next share only after it has
// taken all of this one (a kernel boundary lies between), and all ranks replay the same exchanges of the same batches. An
// exchange may use fewer words than there are: a word's old tag is then any even number behind, and not the one waited for
// unless the word lay idle for 65,536 exchanges of its row.
//
// A mailbox is [2 slots][rows][ranks][1024] words; ranks is the source's. health[0] is 0, or what made this rank stop:
// 1 + the rank that it waited for in vain; health[1] is set by a peer that gave up. Neither is ever cleared by a kernel.
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

#ifndef PATIENCE_NS
#define PATIENCE_NS 5000000000ull  // how long a wait lasts: longer than a peer's first launches
#endif

namespace mailbox {

constexpr int kValues = 7;      // of a word
constexpr int kWords = 1024;    // of a row: 7168 / 7
constexpr unsigned kLookUp = 256;  // polls between looks at the health word and the clock

struct alignas(16) Word {
    uint64_t low, high;

    __device__ uint16_t tag() const { return static_cast<uint16_t>(high >> 48); }
    __device__ uint16_t bits(int i) const {
        return static_cast<uint16_t>(i < 4 ? low >> (16 * i) : high >> (16 * (i - 4)));
    }
};

// Seven values under a tag.
__device__ inline Word word(const uint16_t (&bits)[kValues], uint16_t tag) {
    Word made{0, static_cast<uint64_t>(tag) << 48};
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
        const uint64_t wide = bits[i];
        if (i < 4) made.low |= wide << (16 * i);
        else made.high |= wide << (16 * (i - 4));
    }
    return made;
}

// One store, and one load, of 16 bytes: a word is never seen in part.
__device__ inline void put(Word* place, Word value) {
    asm volatile(
        "{\n\t.reg .b128 w;\n\tmov.b128 w, {%1, %2};\n\tst.relaxed.sys.global.b128 [%0], w;\n\t}" ::"l"(place),
        "l"(value.low), "l"(value.high)
        : "memory");
}

__device__ inline Word get(const Word* place) {
    Word found;
    asm volatile(
        "{\n\t.reg .b128 w;\n\tld.relaxed.sys.global.b128 w, [%2];\n\tmov.b128 {%0, %1}, w;\n\t}"
        : "=l"(found.low), "=l"(found.high)
        : "l"(place)
        : "memory");
    return found;
}

// Nanoseconds, the same clock on every multiprocessor; it ticks about once a microsecond.
__device__ inline uint64_t now() {
    uint64_t time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}

class Mailbox {
public:
    // boxes[r], healths[r]: rank r's mailbox and health words, addressable from here; rows: of a slot.
    __device__ Mailbox(Word* const* boxes, int* const* healths, int rank, int ranks, int rows)
        : boxes_(boxes), healths_(healths), rank_(rank), ranks_(ranks), rows_(rows) {}

    // Stores a word of this rank's share of a row into one peer's mailbox. `count`: earlier exchanges of the row.
    __device__ void send(int peer, int row, int index, const uint16_t (&bits)[kValues], uint32_t count) const {
        put(boxes_[peer] + place(row, rank_, index, count), word(bits, tag(count)));
    }

    // The same into every peer's.
    __device__ void publish(int row, int index, const uint16_t (&bits)[kValues], uint32_t count) const {
        for (int step = 1; step < ranks_; ++step)
            send((rank_ + step) % ranks_, row, index, bits, count);  // not all ranks to one peer at once
    }

    // A word of a peer's share, once it is there. False where it did not come, or a peer gave up: the values are
    // worthless then.
    __device__ bool take(int row, int source, int index, uint32_t count, uint16_t (&bits)[kValues]) const {
        const Word* from = boxes_[rank_] + place(row, source, index, count);
        uint64_t since = 0;
        for (unsigned poll = 1;; ++poll) {
            const Word found = get(from);
            if (found.tag() == tag(count)) {
#pragma unroll
                for (int i = 0; i < kValues; ++i) bits[i] = found.bits(i);
                return true;
            }
            if (poll % kLookUp) continue;
            if (stopped()) return false;
            const uint64_t time = now();
            if (since == 0) since = time;
            else if (time - since > PATIENCE_NS) return give_up(source);
        }
    }

    __device__ bool stopped() const {
        const volatile int* health = healths_[rank_];
        return health[0] != 0 || health[1] != 0;
    }

private:
    // 0 is what fresh memory holds: no share has it before the first 65,535 exchanges, and a slot's old tag is 2 behind.
    __device__ static uint16_t tag(uint32_t count) { return static_cast<uint16_t>(count + 1); }

    __device__ size_t place(int row, int source, int index, uint32_t count) const {
        return ((static_cast<size_t>(count & 1) * rows_ + row) * ranks_ + source) * kWords + index;
    }

    __device__ bool give_up(int source) const {
        atomicCAS(healths_[rank_], 0, 1 + source);
        for (int peer = 0; peer < ranks_; ++peer)
            if (peer != rank_) atomicExch_system(healths_[peer] + 1, 1 + rank_);
        return false;
    }

    Word* const* boxes_;
    int* const* healths_;
    int rank_, ranks_, rows_;
};

}  // namespace mailbox
