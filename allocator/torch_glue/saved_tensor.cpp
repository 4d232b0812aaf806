// See saved_tensor.hpp.
#include "saved_tensor.hpp"

#include <algorithm>
#include <new>

#include "border.hpp"

namespace vdnn::glue {

// --- episodes --------------------------------------------------------------------------------

void Episode::note_save(std::uint32_t layer, std::uint64_t bytes) {
  constexpr std::uint64_t kPrime = 0x100000001B3;
  const std::uint64_t what = (static_cast<std::uint64_t>(layer) << 44) ^ bytes;
  const std::uint64_t mixed = (count.signature ^ what) * kPrime + 1;
  count.signature = mixed != 0 ? mixed : 1;
  ++count.saves;
}

void Episode::note_unpack(std::uint32_t save_index) {
  if (save_index >= count.seen.size()) count.seen.resize(count.saves);
  if (count.seen[save_index]) return;
  count.seen[save_index] = true;
  count.used.push_back(save_index);
}

// --- records ---------------------------------------------------------------------------------

Record::Record(Records& records, std::uint64_t generation)
    : records_(records), generation_(generation) {
  aliases_.reserve(2);
}

Record::~Record() {
  for (Episode* episode : episodes_) {
    --episode->count.live_records;
    Py_DECREF(episode);
  }
  retire();
}

void Record::drop() {
  if (--references_ == 0) delete this;
}

void Record::join(Episode* episode) {
  if (std::find(episodes_.begin(), episodes_.end(), episode) != episodes_.end()) return;
  Py_INCREF(episode);
  episodes_.push_back(episode);
  ++episode->count.live_records;
}

void Record::add(at::TensorBase alias) { aliases_.push_back(alias.unsafeReleaseTensorImpl()); }

void Record::retire() {
  if (generation_ != 0) {
    records_.forget(*this);
    if (!aliases_.empty() && vdnn_is_forked_child() == 0) {
      vdnn_glue_release(aliases_.front(), generation_);
    }
  }
  generation_ = 0;
  for (void* alias : aliases_) {
    c10::intrusive_ptr<c10::TensorImpl>::reclaim(static_cast<c10::TensorImpl*>(alias)).reset();
  }
  aliases_.clear();
}

// A thread that has the turn may want the GIL to end it.
void Record::wait_for_turn() {
  if (mutex_.try_lock()) return;
  Py_BEGIN_ALLOW_THREADS;
  mutex_.lock();
  Py_END_ALLOW_THREADS;
}

vdnn_status Record::restore(std::uint32_t save_index) {
  wait_for_turn();
  const std::lock_guard turn(mutex_, std::adopt_lock);
  if (generation_ == 0) return VDNN_INVALID;
  is_being_restored_ = true;
  // A copy: while the GIL is let go another thread may save the storage once more. It holds it
  // then, so nothing moves.
  const c10::SmallVector<void*, 8> aliases(aliases_.begin(), aliases_.end());
  const std::uint64_t before = generation_;
  vdnn_restored restored{};
  vdnn_status status = VDNN_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = vdnn_glue_restore(before, save_index, aliases.data(), aliases.size(), &restored);
  Py_END_ALLOW_THREADS;
  is_being_restored_ = false;
  if (status != VDNN_OK && status != VDNN_INVALID) return status;
  const std::uint64_t after = status == VDNN_OK ? restored.generation : 0;
  if (after != before) {
    records_.rename(*this, before, after);
    generation_ = after;
  }
  return status;
}

Record& Records::find_or_begin(std::uint64_t generation) {
  Record*& record = alive_[generation];
  const bool is_full = record != nullptr && record->aliases().size() >= max_aliases;
  if (is_full && !record->is_being_restored()) {
    record->retire();  // takes it off the table, and the reference with it
    return *(alive_[generation] = new Record(*this, generation));
  }
  if (record == nullptr) record = new Record(*this, generation);
  return *record;
}

void Records::rename(Record& record, std::uint64_t before, std::uint64_t after) {
  alive_.erase(before);
  if (after != 0) alive_[after] = &record;
}

void Records::forget(const Record& record) {
  const auto it = alive_.find(record.generation());
  if (it != alive_.end() && it->second == &record) alive_.erase(it);
}

// --- the Python objects ----------------------------------------------------------------------

namespace {

PyTypeObject* episode_type = nullptr;
PyTypeObject* saved_type = nullptr;

void free_object(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

void free_episode(PyObject* self) {
  reinterpret_cast<Episode*>(self)->count.~Count();
  free_object(self);
}

void free_saved(PyObject* self) {
  Saved::Contents& contents = reinterpret_cast<Saved*>(self)->contents;
  if (latest_rectified == reinterpret_cast<Saved*>(self)) latest_rectified = nullptr;
  Py_XDECREF(contents.node_name);
  Py_XDECREF(contents.episode);
  contents.alias.reset();
  if (contents.record != nullptr) contents.record->drop();
  contents.~Contents();
  free_object(self);
}

const Episode::Count& count_of(PyObject* self) { return reinterpret_cast<Episode*>(self)->count; }

PyObject* get_used(PyObject* self, void* /*closure*/) {
  const std::vector<std::uint32_t>& used = count_of(self).used;
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(used.size()));
  if (list == nullptr) return nullptr;
  for (std::size_t i = 0; i < used.size(); ++i) {
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), PyLong_FromUnsignedLong(used[i]));
  }
  return list;
}

PyGetSetDef episode_attributes[] = {
    {"signature",
     [](PyObject* self, void*) { return PyLong_FromUnsignedLongLong(count_of(self).signature); },
     nullptr, nullptr, nullptr},
    {"saves", [](PyObject* self, void*) { return PyLong_FromUnsignedLong(count_of(self).saves); },
     nullptr, nullptr, nullptr},
    {"used", &get_used, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyTypeObject* make_type(const char* name, std::size_t size, destructor free_one,
                        PyGetSetDef* attributes) {
  PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_one)},
                         {attributes != nullptr ? Py_tp_getset : 0, attributes},
                         {0, nullptr}};
  PyType_Spec spec{name, static_cast<int>(size), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  return reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
}

}  // namespace

bool make_saved_types() {
  if (saved_type != nullptr) return true;
  episode_type =
      make_type("vdnn_alloc.Episode", sizeof(Episode), &free_episode, episode_attributes);
  saved_type = make_type("vdnn_alloc.Saved", sizeof(Saved), &free_saved, nullptr);
  return episode_type != nullptr && saved_type != nullptr;
}

Episode* make_episode() {
  auto* episode = reinterpret_cast<Episode*>(episode_type->tp_alloc(episode_type, 0));
  if (episode != nullptr) new (&episode->count) Episode::Count();
  return episode;
}

Saved* make_saved() {
  auto* saved = reinterpret_cast<Saved*>(saved_type->tp_alloc(saved_type, 0));
  if (saved != nullptr) new (&saved->contents) Saved::Contents();
  return saved;
}

bool is_saved(PyObject* object) { return Py_TYPE(object) == saved_type; }

}  // namespace vdnn::glue
