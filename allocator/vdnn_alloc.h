/* The whole C interface of the allocator: what torch calls, what the torch glue calls, and what
 * the Python controller calls through ctypes. Plain C; vdnn_alloc/native.py mirrors it.
 *
 * Every call is thread-safe. None takes the Python GIL or calls Python. A call that can fail
 * returns a vdnn_status; the sentence is in vdnn_last_error(), per thread. Sizes are bytes.
 * `stream` is torch's stream pointer (cudaStream_t); on the host backend it is NULL, which means
 * the calling thread. A `generation` names one life of one block, for ever: 0 names none. */
#ifndef VDNN_ALLOC_H
#define VDNN_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VDNN_ABI_VERSION 4

typedef enum {
  VDNN_OK = 0,
  VDNN_OUT_OF_MEMORY = 1,      /* the budget cannot serve it */
  VDNN_INVALID = 2,            /* the argument makes no sense, or the allocator is not started */
  VDNN_DRIVER = 3,             /* the device or its driver refused */
  VDNN_HOST_OUT_OF_MEMORY = 4, /* the machine refused page-locked host memory */
} vdnn_status;

typedef enum { VDNN_BACKEND_HOST = 0, VDNN_BACKEND_CUDA = 1 } vdnn_backend;

/* When a saved block leaves the device. */
typedef enum {
  VDNN_POLICY_NONE = 0,     /* never */
  VDNN_POLICY_EAGER = 1,    /* every block saved with VDNN_SAVE_EAGER, as soon as it is cold; the
                               frames are released at once (vDNN_all, vDNN_conv) */
  VDNN_POLICY_PRESSURE = 2, /* when a request finds no frames; blocks that left in the last step
                               are copied ahead of need (vDNN_dyn) */
} vdnn_policy;

/* Whether operators are watched, so that what the program holds may leave (the access guard). */
typedef enum {
  VDNN_GUARD_AUTO = 0, /* where what the program holds does not leave enough room */
  VDNN_GUARD_ON = 1,
  VDNN_GUARD_OFF = 2,
} vdnn_guard_mode;

/* What a convolution may take for itself while it runs. */
typedef enum {
  VDNN_WORKSPACE_STOCK = 0,   /* what it asks for, by eviction if need be */
  VDNN_WORKSPACE_NONE = 1,    /* nothing, where its engine is chosen by trying (cudnn.benchmark) */
  VDNN_WORKSPACE_PLANNED = 2, /* not what would push out more than it is worth: workspaces.hpp */
} vdnn_workspace_mode;

typedef enum { VDNN_FORWARD = 0, VDNN_BACKWARD = 1, VDNN_OUTSIDE = 2 } vdnn_phase;

typedef struct {
  uint32_t abi_version;           /* VDNN_ABI_VERSION */
  uint32_t backend;               /* vdnn_backend */
  uint32_t policy;                /* vdnn_policy */
  uint32_t check;                 /* 0-3; see check.hpp */
  uint32_t guard;                 /* vdnn_guard_mode */
  uint32_t workspace;             /* vdnn_workspace_mode */
  uint64_t budget_bytes;          /* device bytes per device, never passed */
  uint64_t host_budget_bytes;     /* page-locked bytes of all devices together */
  uint64_t frame_bytes;           /* host backend only: 0 = budget / 512, at least 64 KiB */
  uint64_t seed;                  /* host backend only: lateness of streams; 0 = none */
  uint64_t host_bytes_per_second; /* host backend only: of each copy direction; 0 = unlimited */
} vdnn_config;

/* Starts the one allocator of this process. VDNN_INVALID if it is started already. */
vdnn_status vdnn_start(const vdnn_config* config);
/* The smallest budget that vdnn_start accepts for this backend, in bytes. */
uint64_t vdnn_minimum_budget(uint32_t backend, uint64_t frame_bytes);
/* From now on at most `bytes` of this device; more than at start means as at start. VDNN_INVALID,
 * and nothing changes, if more is in use already or it is less than the smallest budget. */
vdnn_status vdnn_set_budget(int device, uint64_t bytes);
/* The sentence of this thread's last failure; "" if none. Valid until the next call. */
const char* vdnn_last_error(void);

/* --- what torch calls (CUDAPluggableAllocator's signatures) -------------------------------- */

/* NULL for size 0. Never NULL otherwise: on failure throws (through the thrower below if one is
 * set, else std::runtime_error beginning "CUDA out of memory."). C++ linkage of exceptions. */
void* vdnn_torch_malloc(size_t size, int device, void* stream);
void vdnn_torch_free(void* address, size_t size, int device, void* stream);
void vdnn_torch_record_stream(void* address, void* stream);
/* Waits for the device, then unmaps and returns all frames that nobody owns (empty_cache). */
void vdnn_torch_empty_cache(void);

/* --- CUDA graphs (what torch's graph-pool functions need) ---------------------------------- */

/* A capture into `pool` (any number but 0) begins: waits for the device; until vdnn_end_capture
 * nothing moves on it. The pool is held once more. */
vdnn_status vdnn_begin_capture(int device, uint64_t pool);
vdnn_status vdnn_end_capture(int device);
/* The pool is held once more, to be filled outside a capture: what is in it never moves, and to
 * serve it others may. */
vdnn_status vdnn_hold_pool(int device, uint64_t pool);
/* As vdnn_torch_malloc, for a block that a graph may bake in. Freed as any other. */
void* vdnn_graph_malloc(size_t size, int device, void* stream, uint64_t pool);
/* The pool is held once less; its memory goes back when nobody holds it and its blocks are gone. */
vdnn_status vdnn_release_pool(int device, uint64_t pool);

/* A live block of a pool. */
typedef struct {
  uint64_t address, size; /* as asked for */
  uint64_t pool;
  uint64_t stream; /* the pointer that it was asked for with */
} vdnn_graph_block;

/* Fills at most `capacity` live blocks of `pool` (0: of all pools), in the order of their birth;
 * returns how many there are. */
size_t vdnn_read_graph_blocks(int device, uint64_t pool, vdnn_graph_block* blocks, size_t capacity);
/* The pool's blocks become these, which were read from it before: replays have made them anew at
 * the same addresses. What lived there until now is dead without having been freed. Waits for the
 * device. VDNN_INVALID, and nothing changes, if the pool has no such places. */
vdnn_status vdnn_rewind_pool(int device, uint64_t pool, const vdnn_graph_block* blocks,
                             size_t count);

/* --- what the glue registers --------------------------------------------------------------- */

/* Must throw torch's typed error with `text`. */
void vdnn_set_error_thrower(void (*thrower)(vdnn_status status, const char* text));
/* Returns how many references hold a storage (c10::StorageImpl*), without the GIL. Without it no
 * block is ever known to be cold. */
void vdnn_set_use_count_reader(uint64_t (*reader)(const void* storage));

/* Takes the address out of a cold storage, whose size stays, without freeing it: the block has
 * left, and its mapping is anybody's. Called with the device
 * locked; must not call back. Without it an address stays reserved until its storage dies. */
void vdnn_set_storage_emptier(void (*emptier)(const void* storage));

/* `lasts` returns 0 for a CUDA stream that its owner may destroy while the process runs: nothing is
 * asked of such a stream except by the calls that are made on it, and where its work must be waited
 * for, the whole device is. Called with a device locked; must not call back. Without it every
 * stream but the default one is taken for such a stream. */
void vdnn_set_stream_lasts(int (*lasts)(void* stream));

/* `switch_on(1)` must make every operator call vdnn_guard_begin before it touches its inputs, and
 * vdnn_guard_end when it is over; `switch_on(0)` must end that. Called with nothing locked.
 * `is_seen` returns 0 on a thread whose operators are not seen. Without them the guard stays off.
 */
void vdnn_set_guard_switch(void (*switch_on)(int is_on), int (*is_seen)(void));

/* --- the access guard: what the glue calls around each operator ---------------------------- */

typedef struct {
  uint64_t address, generation;
} vdnn_pin;

#define VDNN_GUARD_EXEMPT \
  1u /* what it touches is used beyond its end: it never leaves while held */

/* True (1) while the guard is on for any device. One atomic load. */
int vdnn_guard_is_on(void);
/* An operator is about to touch the storages at `addresses`, on `stream`: what is away comes home,
 * and all stay until vdnn_guard_end. Fills `pins`, which has room for `count`; returns how many.
 * What cannot come home is remembered: this thread's next request or restore fails with it. */
size_t vdnn_guard_begin(int device, const void* const* addresses, size_t count, void* stream,
                        uint32_t flags, vdnn_pin* pins);
/* The operator is over; its work was queued on `stream`. */
void vdnn_guard_end(int device, const vdnn_pin* pins, size_t count, void* stream);

/* --- workspaces: what the glue asks, and calls around each operator ------------------------ */

/* True (1) if the two calls below are of use: workspace=planned. */
int vdnn_plans_workspaces(void);
/* The calling thread begins, and ends, an operator; they nest, and only the innermost counts. One
 * that can do with less catches the out-of-memory error of memory that it asks for only for itself,
 * and asks for less, or none. Only such a request may be refused though it could be served. */
void vdnn_begin_operator(int can_do_with_less);
void vdnn_end_operator(void);
/* The largest workspace that a convolution may try now (cacheInfo), in bytes. */
uint64_t vdnn_workspace_bytes(int device);

/* --- what the controller calls ------------------------------------------------------------- */

#define VDNN_SAVE_EAGER 1u

/* Autograd saves the storage that begins at `address`. `storage` is its c10::StorageImpl, of
 * which the caller keeps one more reference from now on until vdnn_abandon (the references are
 * counted: a block is cold when nobody else holds its storage). `save_index` numbers the save
 * within its episode (see vdnn_begin_episode). Returns the block's generation, or 0 if `address`
 * is no block of ours that may move (then the caller just keeps the tensor). */
uint64_t vdnn_save(int device, const void* address, const void* storage, void* stream,
                   uint32_t layer, uint32_t save_index, uint32_t flags);

typedef struct {
  uint64_t generation; /* of the block that now holds the data */
  uint64_t address;    /* of its first byte */
  uint64_t size;       /* bytes that were asked for when the block was born */
  uint32_t moved;      /* 0: it is where it was. 1: it lives elsewhere now, and the caller owns that
                          life: it makes a storage over `address` that frees it through
                          vdnn_torch_free, puts that under every tensor of its own, drops the old
                          storage and calls vdnn_adopt. (The glue does all this in one call.) */
  uint32_t reserved;
} vdnn_restored;

/* Autograd asks for what was saved as `save_index`. On return the data is whole and stays (pinned)
 * until this thread's next vdnn_save, vdnn_restore or vdnn_boundary; `stream` is ordered behind
 * the copy back. */
vdnn_status vdnn_restore(int device, uint64_t generation, void* stream, uint32_t save_index,
                         vdnn_restored* out);
/* The second life `generation` is now held by `storage`, `references` of which are the caller's. */
vdnn_status vdnn_adopt(int device, uint64_t generation, const void* storage, uint32_t references);

/* The caller is about to drop its references on the storage of `generation`. If others hold it, it
 * lives on and never moves again; if it is away, its host copy is dropped. */
vdnn_status vdnn_abandon(int device, uint64_t generation);

/* This thread now runs `layer` in `phase`; blocks born from here on belong to it. Lets waiting
 * offloads and prefetches go ahead. Layer 0 is "outside every layer". A layer that ends by an
 * exception is left by way of (0, VDNN_OUTSIDE): so a refused request that its layer survived can
 * be told from one that the user sees. */
vdnn_status vdnn_boundary(int device, uint32_t layer, uint32_t phase, void* stream);
/* Gives a layer its name in reports. The text is copied. */
void vdnn_name_layer(uint32_t layer, const char* name);

/* A new episode (one forward and its backward) begins on every device. Save indices start again
 * at 0. `finished` is the signature of the episode that ends (0: none), under which what was
 * learned of it is kept; `expected` that of the one that begins (0: unknown). `ranks[i]` is the
 * place of save i in the order of coming uses (0 = first), for i < count; saves beyond are
 * expected in reverse order. */
void vdnn_begin_episode(uint64_t finished, uint64_t expected, const uint32_t* ranks, size_t count);
/* What is born from here until the next episode outlives the step (optimizer state). */
void vdnn_end_of_step(void);

/* --- recording a step, and planning the next ones like it ---------------------------------- */

typedef enum {
  VDNN_STEP_ALLOC = 0,
  VDNN_STEP_FREE = 1,
  VDNN_STEP_SAVE = 2,
  VDNN_STEP_COLD = 3,
  VDNN_STEP_USE = 4,
} vdnn_step_kind;

/* What happened to a block that takes frames, or to a slab of small ones. */
typedef struct {
  uint64_t time_ns;    /* that the device worked since the first event, less waits for memory */
  uint64_t frames;     /* of the block; 0 for COLD and USE */
  uint32_t kind;       /* vdnn_step_kind */
  uint32_t block;      /* by number, in the order in which they appear */
  uint32_t position;   /* how many lines of the episode's timeline were written: the same moment of
                          the program in every step of the same signature */
  uint32_t save_index; /* of a SAVE */
  uint32_t layer;      /* of an ALLOC or a SAVE */
  uint32_t operator_number; /* of an ALLOC: which of the operators that can do with less asked for
                               it, from 1; 0: none of them, or workspaces are not planned */
} vdnn_step_event;

typedef struct {
  uint64_t duration_ns;  /* from the first event to the next episode, waits for memory left out */
  uint64_t waited_ns;    /* those waits */
  uint64_t begin_frames; /* taken, or wanted back, when the episode began */
  uint64_t out_bytes, out_ns, in_bytes, in_ns; /* copies of the step, and the time that they took */
} vdnn_step;

/* The episode that begins next is recorded, on every device. */
void vdnn_record_next_episode(void);
/* The devices that were used so far, as bits. */
uint64_t vdnn_used_devices(void);
/* Ends the recording; fills `step` and at most `capacity` events once the device is through with
 * it, which is never waited for; returns how many events there are. 0: nothing is there (yet). When
 * all were taken, the recording is forgotten. */
size_t vdnn_read_step(int device, vdnn_step* step, vdnn_step_event* events, size_t capacity);

#define VDNN_NO_PREFETCH 0xffffffffu

/* The block of this save leaves as soon as it is cold, and is asked back when the timeline has so
 * many lines. */
typedef struct {
  uint32_t save_index;
  uint32_t prefetch_position; /* VDNN_NO_PREFETCH: at its use */
} vdnn_planned_move;

/* A workspace of so many frames is refused to this operator; see vdnn_step_event. */
typedef struct {
  uint32_t operator_number;
  uint32_t frames;
} vdnn_planned_refusal;

/* What leaves in episodes of this signature, from the next on, and which workspaces are refused;
 * nothing: pressure decides. Where an episode turns out to be another, the plan is off until its
 * end. */
vdnn_status vdnn_set_plan(int device, uint64_t signature, const vdnn_planned_move* moves,
                          size_t move_count, const vdnn_planned_refusal* refusals,
                          size_t refusal_count);

#define VDNN_SAVE_WAS_LATE 1u /* somebody had to wait for it */
#define VDNN_SAVE_WAS_KEPT 2u /* it was copied out, and nobody took its frames */

/* How the last episode of this signature went, by save index; returns how many saves there are. */
size_t vdnn_read_outcome(int device, uint64_t signature, uint8_t* flags, size_t capacity);

/* --- reading ------------------------------------------------------------------------------- */

typedef struct {
  uint64_t frame_bytes, budget_bytes, host_budget_bytes;
  uint64_t live_bytes, live_bytes_max;            /* asked for and not freed, wherever they are */
  uint64_t resident_bytes, resident_bytes_max;    /* of those, on the device */
  uint64_t owned_bytes, owned_bytes_max;          /* frames of blocks and slabs */
  uint64_t created_bytes, created_bytes_max;      /* frames that exist: never above the budget */
  double live_bytes_average, owned_bytes_average; /* over time since start or the last reset */
  uint64_t live_blocks, offloaded_blocks, heap_blocks;
  uint64_t mappings, mapped_bytes; /* address ranges built, and their length */
  uint64_t host_bytes, host_bytes_max, host_pinned_bytes; /* in use by host copies; page-locked */
  uint64_t offloaded_bytes, prefetched_bytes;             /* copied out and in since start */
  uint64_t offloads, prefetches, late_prefetches, dropped_prefetches, kept_offloads;
  uint64_t allocations, frees, mapping_misses;  /* misses: requests that built a mapping */
  uint64_t first_miss_bytes;                    /* size of the first miss of this episode; 0 none */
  uint64_t stall_ns;                            /* CPU time waited for copies inside our calls */
  uint64_t guarded_blocks;                      /* held by the program, and away now */
  uint64_t guarded_out_bytes, guarded_in_bytes; /* of the copies, those of held blocks */
  uint64_t guard_restores;                      /* held blocks that came home */
  uint64_t guard_waits, guard_wait_ns;          /* of the CPU, for the device, for held blocks */
  uint64_t guard_remap_ns;                      /* CPU time spent on what their addresses show */
  uint64_t guard_is_on;
  uint64_t ooms, workspace_refusals, episodes;
  uint64_t driver_create, driver_release, driver_map, driver_set_access, driver_unmap, driver_pin;
  uint64_t driver_copies;
} vdnn_stats;

typedef struct {
  uint32_t layer, reserved;
  uint64_t owned_bytes, owned_bytes_max; /* live bytes of blocks born in this layer */
  uint64_t saved_bytes, offloaded_bytes, prefetched_bytes; /* since start */
  uint64_t guarded_bytes; /* copied out while the program held them */
  uint64_t waited_ns, workspace_refusals;
} vdnn_layer_stats;

vdnn_status vdnn_read_stats(int device, vdnn_stats* out);
/* Fills at most `capacity` rows in order of layer; returns how many there are. */
size_t vdnn_read_layer_stats(int device, vdnn_layer_stats* rows, size_t capacity);
const char* vdnn_layer_name(uint32_t layer);
/* The maxima begin again from what is now. */
void vdnn_reset_peaks(int device);

/* One event of the trace; kinds are vdnn_trace_kind_name()'s. */
typedef struct {
  uint64_t time_ns, generation, bytes;
  uint32_t kind, layer;
} vdnn_trace_event;
/* Copies the newest events, oldest first, at most `capacity`; returns how many. */
size_t vdnn_read_trace(int device, vdnn_trace_event* out, size_t capacity);
const char* vdnn_trace_kind_name(uint32_t kind);

/* True (1) if `address` lies in a block of ours on `device`. */
int vdnn_owns(int device, const void* address);
/* Walks every table of every device; VDNN_INVALID with the broken equation. */
vdnn_status vdnn_validate(void);

/* --- the simulated device (host backend), for tests ---------------------------------------- */

/* The n-th call from now of `primitive` (driver.hpp's order) fails once; 0 clears. */
vdnn_status vdnn_host_fail_at(uint32_t primitive, uint64_t nth);
/* st_blocks of the memory behind the frames, in bytes; 0 on a GPU. */
uint64_t vdnn_host_witness_bytes(void);
/* Kernel mappings in use by the address ranges; 0 on a GPU. */
uint64_t vdnn_host_mapping_count(void);
/* True (1) in a process forked from the one that started the allocator: it is inert there. */
int vdnn_is_forked_child(void);

#ifdef __cplusplus
}
#endif
#endif
