// Rows from rank to rank, without a collective: every rank owns a mailbox that its peers store into.
//
// A row of 7168 bf16 values is 1024 words of 16 bytes: seven values and a 16-bit tag, in one store. The tag is how often
// the row has been exchanged, its lowest bit the slot. Whoever sees the tag that it waits for sees the values with it, so
// nothing is cleared, counted or fenced. What the protocol needs besides: a rank publishes a row's next share only after
// it has taken all of this one (a kernel boundary or a grid barrier lies between), and all ranks replay the same batches.
//
// A mailbox is [2 slots][rows][ranks][1024] words; ranks is the source's. health[0] is 0, or what made this rank stop:
// 1 + the rank that it waited for in vain; health[1] is set by a peer that gave up. Neither is ever cleared by a kernel.
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

namespace mailbox {

constexpr int kValues = 7;      // of a word
constexpr int kWords = 1024;    // of a row: 7168 / 7
constexpr unsigned kPatience = 1u << 23;  // polls; one takes 0.5 us and more: some seconds, longer than a first launch
constexpr unsigned kLookUp = 256;         // polls between looks at the health word

struct alignas(16) Word {
    uint64_t low, high;

    __device__ uint16_t tag() const { return static_cast<uint16_t>(high >> 48); }
    __device__ float value(int i) const {
        const uint64_t half = i < 4 ? low >> (16 * i) : high >> (16 * (i - 4));
        return __uint_as_float(static_cast<uint32_t>(half & 0xffff) << 16);
    }
};

// Seven values, rounded to bf16, under a tag.
__device__ inline Word word(const float (&values)[kValues], uint16_t tag) {
    Word made{0, static_cast<uint64_t>(tag) << 48};
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
        const uint64_t bits = __bfloat16_as_ushort(__float2bfloat16_rn(values[i]));
        if (i < 4) made.low |= bits << (16 * i);
        else made.high |= bits << (16 * (i - 4));
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

class Mailbox {
public:
    // boxes[r], healths[r]: rank r's mailbox and health words, addressable from here; rows: of a slot.
    __device__ Mailbox(Word* const* boxes, int* const* healths, int rank, int ranks, int rows)
        : boxes_(boxes), healths_(healths), rank_(rank), ranks_(ranks), rows_(rows) {}

    // Stores this rank's share of a row, word by word, into every peer's mailbox. `count`: earlier exchanges of the row.
    __device__ void publish(int row, int index, const float (&values)[kValues], uint32_t count) const {
        const Word made = word(values, tag(count));
        for (int step = 1; step < ranks_; ++step) {
            const int peer = (rank_ + step) % ranks_;  // not all ranks to one peer at once
            put(boxes_[peer] + place(row, rank_, index, count), made);
        }
    }

    // A peer's share, once it is there. False where it did not come, or a peer gave up: the values are worthless then.
    __device__ bool take(int row, int source, int index, uint32_t count, float (&values)[kValues]) const {
        const Word* from = boxes_[rank_] + place(row, source, index, count);
        for (unsigned poll = 0;; ++poll) {
            const Word found = get(from);
            if (found.tag() == tag(count)) {
#pragma unroll
                for (int i = 0; i < kValues; ++i) values[i] = found.value(i);
                return true;
            }
            if (poll == kPatience) return give_up(source);
            if (poll % kLookUp == kLookUp - 1 && stopped()) return false;
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
