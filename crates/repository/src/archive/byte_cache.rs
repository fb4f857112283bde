//! A cache of loaded values, bounded in bytes, for any number of threads.
//!
//! A value that several threads need at the same moment is loaded once: the others wait for it. The
//! least recently used values leave first. A failed load is not remembered.

use fullbore_format::error::Result;
use fullbore_platform::queue::Locked;
use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::{Arc, Condvar, Mutex, PoisonError},
};

/// Values by key, together at most a number of bytes.
pub struct ByteCache<K, V> {
    most_bytes: usize,
    state: Mutex<CacheState<K, V>>,
    loaded: Condvar,
}

struct CacheState<K, V> {
    slots: HashMap<K, CacheSlot<V>>,
    /// Keys of the loaded values by the time of their last use.
    by_use: BTreeMap<u64, K>,
    clock: u64,
    bytes: usize,
}

enum CacheSlot<V> {
    /// A thread loads it.
    Loading,
    Loaded {
        value: Arc<V>,
        bytes: usize,
        used: u64,
    },
}

impl<K: Clone + Eq + Hash, V> ByteCache<K, V> {
    /// Makes an empty cache. The value that was loaded last stays, whatever its size.
    pub fn new(most_bytes: usize) -> Self {
        Self {
            most_bytes,
            state: Mutex::new(CacheState {
                slots: HashMap::new(),
                by_use: BTreeMap::new(),
                clock: 0,
                bytes: 0,
            }),
            loaded: Condvar::new(),
        }
    }

    /// Returns the value of `key`. If it is not here, `load` makes it and says its size in bytes.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn get(&self, key: &K, load: impl FnOnce() -> Result<(V, usize)>) -> Result<Arc<V>> {
        if let Some(value) = self.wait_for(key) {
            return Ok(value);
        }
        let loading = Loading { cache: self, key };
        let (value, bytes) = load()?;
        let value = Arc::new(value);
        self.state.locked().insert(key, value.clone(), bytes);
        self.state.locked().shrink(self.most_bytes);
        drop(loading);
        Ok(value)
    }

    /// Returns whether the value is here, or a thread loads it.
    pub fn has(&self, key: &K) -> bool {
        self.state.locked().slots.contains_key(key)
    }

    /// Returns the bytes of all values.
    pub fn bytes(&self) -> usize {
        self.state.locked().bytes
    }

    /// Drops all values.
    pub fn clear(&self) {
        self.state.locked().shrink(0);
        self.state.locked().drop_last();
    }

    /// Returns the value, after another thread has loaded it. `None` makes this thread the one
    /// that loads it.
    fn wait_for(&self, key: &K) -> Option<Arc<V>> {
        let mut state = self.state.locked();
        loop {
            match state.slots.get(key) {
                Some(CacheSlot::Loading) => {
                    state = self
                        .loaded
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                Some(CacheSlot::Loaded { .. }) => return state.touch(key),
                None => {
                    state.slots.insert(key.clone(), CacheSlot::Loading);
                    return None;
                }
            }
        }
    }
}

/// While a thread loads a value. The end wakes those that wait, also if the load failed or
/// panicked.
struct Loading<'a, K: Clone + Eq + Hash, V> {
    cache: &'a ByteCache<K, V>,
    key: &'a K,
}

impl<K: Clone + Eq + Hash, V> Drop for Loading<'_, K, V> {
    fn drop(&mut self) {
        let mut state = self.cache.state.locked();
        if matches!(state.slots.get(self.key), Some(CacheSlot::Loading)) {
            state.slots.remove(self.key);
        }
        drop(state);
        self.cache.loaded.notify_all();
    }
}

impl<K: Clone + Eq + Hash, V> CacheState<K, V> {
    fn insert(&mut self, key: &K, value: Arc<V>, bytes: usize) {
        self.clock += 1;
        let used = self.clock;
        let slot = CacheSlot::Loaded { value, bytes, used };
        self.slots.insert(key.clone(), slot);
        self.by_use.insert(used, key.clone());
        self.bytes += bytes;
    }

    fn touch(&mut self, key: &K) -> Option<Arc<V>> {
        let Some(CacheSlot::Loaded { value, used, .. }) = self.slots.get_mut(key) else {
            return None;
        };
        self.clock += 1;
        self.by_use.remove(used);
        *used = self.clock;
        self.by_use.insert(*used, key.clone());
        Some(value.clone())
    }

    /// Drops the values that were not used for the longest time, except the last one.
    fn shrink(&mut self, most_bytes: usize) {
        while self.bytes > most_bytes && self.by_use.len() > 1 {
            self.drop_last();
        }
    }

    fn drop_last(&mut self) {
        let Some((_, key)) = self.by_use.pop_first() else {
            return;
        };
        if let Some(CacheSlot::Loaded { bytes, .. }) = self.slots.remove(&key) {
            self.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_format::error::Error;
    use std::{
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
        thread,
    };

    #[test]
    fn the_least_recently_used_values_leave_first() {
        let cache = ByteCache::new(30);
        let loads = AtomicUsize::new(0);
        let get = |key: u32| {
            let load = || {
                loads.fetch_add(1, Relaxed);
                Ok((key, 10))
            };
            *cache.get(&key, load).unwrap()
        };
        assert_eq!([1, 2, 3, 1, 4, 1].map(get), [1, 2, 3, 1, 4, 1]);
        assert_eq!((loads.load(Relaxed), cache.bytes()), (4, 30));
        assert!(cache.has(&1) && !cache.has(&2) && cache.has(&3) && cache.has(&4));
        cache.clear();
        assert_eq!((cache.bytes(), cache.has(&1)), (0, false));
    }

    #[test]
    fn one_value_may_be_larger_than_the_cache() {
        let cache = ByteCache::new(10);
        for key in [1, 2] {
            cache.get(&key, || Ok(((), 100))).unwrap();
        }
        assert_eq!((cache.bytes(), cache.has(&1)), (100, false));
    }

    #[test]
    fn threads_that_need_a_value_at_the_same_moment_load_it_once() {
        let cache = ByteCache::new(100);
        let loads = AtomicUsize::new(0);
        let load = || {
            loads.fetch_add(1, Relaxed);
            thread::sleep(std::time::Duration::from_millis(50));
            Ok((7, 1))
        };
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(*cache.get(&"key", load).unwrap(), 7));
            }
        });
        assert_eq!(loads.load(Relaxed), 1);
    }

    #[test]
    fn a_failed_load_is_tried_again() {
        let cache = ByteCache::<u32, u32>::new(100);
        assert!(cache.get(&1, || Err(Error::corrupt("damaged"))).is_err());
        assert_eq!(*cache.get(&1, || Ok((5, 1))).unwrap(), 5);
    }
}
