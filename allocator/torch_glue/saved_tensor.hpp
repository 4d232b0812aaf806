// What autograd keeps in place of a saved tensor, and what all that show one storage share.
//
// A Saved is a small Python object; Python and the garbage collector see nothing inside it. It
// keeps an alias, x.detach(), never x: an output kept by its own graph would never be freed. All
// aliases of one storage share a Record, owned by the Saved alone; when it dies the storage is
// freed without any call of ours. The core counts the aliases: a storage that nobody else holds is
// cold. Everything here is guarded by the GIL.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "python_tensor.hpp"

namespace vdnn::glue {

// One forward and its backward: what it saved, and the order in which that came back. A Python
// object with attributes to read; its records keep it while they live.
struct Episode {
  PyObject_HEAD struct Count {
    std::uint64_t signature = 0;  // a rolling hash of the saves so far; 0 while there are none
    std::uint32_t saves = 0;
    std::int64_t live_records = 0;    // storages saved in it whose graph is alive
    std::vector<std::uint32_t> used;  // save indices in the order of their first unpack
    std::vector<bool> seen;           // by save index
  } count;

  void note_save(std::uint32_t layer, std::uint64_t bytes);
  void note_unpack(std::uint32_t save_index);
};

class Records;

// One storage that autograd saved: our aliases of it, under one generation of its block.
class Record {
 public:
  Record(Records& records, std::uint64_t generation);
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  void share() { ++references_; }
  // Dies with the last Saved that shows it.
  void drop();
  // The episode has a record alive as long as this one lives.
  void join(Episode* episode);
  void add(at::TensorBase alias);
  // The aliases are no longer counted as ours: while one lives, its storage stays.
  void retire();
  // Makes the data whole under every alias, with the GIL let go. INVALID: there is no such block
  // any more, for someone who held the storage too has resized it, so it never left and the
  // aliases show what it holds now; the record remembers that.
  vdnn_status restore(std::uint32_t save_index);

  [[nodiscard]] std::uint64_t generation() const { return generation_; }
  [[nodiscard]] const std::vector<void*>& aliases() const { return aliases_; }
  [[nodiscard]] bool is_being_restored() const { return is_being_restored_; }

 private:
  ~Record();
  void wait_for_turn();

  Records& records_;
  std::uint64_t generation_;  // 0 once its block is gone: then the aliases are all there is
  std::uint32_t references_ = 0;
  bool is_being_restored_ = false;
  std::vector<void*> aliases_;      // owned TensorImpls, in the form that the border takes
  std::vector<Episode*> episodes_;  // those that saved it: almost always one
  std::mutex mutex_;                // held while the storage may be exchanged; see restore()
};

// The records that are alive, by generation.
class Records {
 public:
  [[nodiscard]] Record& find_or_begin(std::uint64_t generation);
  void rename(Record& record, std::uint64_t before, std::uint64_t after);
  void forget(const Record& record);
  [[nodiscard]] const std::unordered_map<std::uint64_t, Record*>& alive() const { return alive_; }

  // Of one record. A storage saved again and again while some graph that holds it is always alive
  // (a buffer in a loop whose graphs overlap) begins another record then.
  std::uint32_t max_aliases = 4096;

 private:
  std::unordered_map<std::uint64_t, Record*> alive_;
};

struct Saved {
  PyObject_HEAD struct Contents {
    at::TensorBase alias;
    // Of what was saved with a node of its own: who it was, with no hold on its data, and the node,
    // to be compared only. See is_detached.
    c10::weak_intrusive_ptr<c10::TensorImpl> original{c10::intrusive_ptr<c10::TensorImpl>()};
    const void* node = nullptr;
    std::uint32_t version = 0;
    std::uint32_t output = 0;       // which output of its node x is
    PyObject* node_name = nullptr;  // of the node that x comes from; null: a leaf
    bool is_view = false;
    bool is_shrunk = false;  // the alias shows what was saved as a smaller type
    // Defined: the values are gone, and this has the form that they had, over no data. The alias
    // shows their signs, or there is none.
    at::TensorBase form;
    c10::VariableVersion whole_version;  // of what was saved, if the alias shows something else
    Record* record = nullptr;            // null: it never moves
    Episode* episode = nullptr;
    std::uint32_t layer = 0;
    std::uint32_t save_index = 0;
  } contents;
};

// The latest whose values may turn out to be needed for their signs alone, or null. Not owned.
inline Saved* latest_rectified = nullptr;

// Makes the types of the two objects; false, with Python's error set, if it cannot.
[[nodiscard]] bool make_saved_types();
[[nodiscard]] Episode* make_episode();
[[nodiscard]] Saved* make_saved();
[[nodiscard]] bool is_saved(PyObject* object);

}  // namespace vdnn::glue
