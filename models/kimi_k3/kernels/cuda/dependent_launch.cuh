// Programmatic dependent launch: what a kernel may do before its predecessor in the stream has ended, and when its own
// successor may come. A launch without the attribute begins when its predecessor has ended, and waits for nothing.
//
// *Before the wait* a kernel reads weights, which no launch writes, and writes shared memory. All else is behind it, by every
// thread that does it: reads of what a predecessor writes, and the first write to memory of any kind (outputs, scratch, tagged
// words, counters, barriers), since a predecessor may still read or write the same places: scratch is shared by launches, and
// counters of barriers go on from launch to launch.
//
// *The wait* ends when the predecessor's grid has ended and what it wrote is visible. In every block some thread waits, so no
// grid ends before its predecessor has; by induction, whoever is behind the wait is behind all launches before it.
//
// *Successors may come* when every block has said so or ended. A programmatic launch says so behind its wait, so of three in a
// row the first has ended before a block of the third runs. It says so when nothing but its end is left: a successor's blocks
// need the shared memory that these hold, so none gets in before one of these ends, however early it may.
//
// *A barrier of the grid needs all blocks at once.* A cooperative launch promises that. Without the attribute it follows, in a
// stream that has the GPU to itself: the grid is no larger than what fits (a block a multiprocessor); blocks of the predecessor
// end without waiting for this grid; and no successor's block takes a place before all of this grid have theirs, since all
// of them must have said so. Two streams of such launches could each hold half of the GPU and wait for the other half: there
// the attribute has to stay.
#pragma once

__device__ __forceinline__ void wait_for_predecessors() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// By any thread of a block: once is enough.
__device__ __forceinline__ void let_dependents_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
