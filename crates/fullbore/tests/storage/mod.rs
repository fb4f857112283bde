//! Storages of a repository's objects: one suite for all, and what is particular to each.

mod cached;
mod cloud;
mod coalesced;
mod keys;
mod lease;
mod local_directory;
mod sealed;
mod stock_age;
pub(crate) mod suite;
mod two_stores;
mod wrappers;

use fullbore_storage::{
    CacheSpec, CachedObjects, CoalescedObjects, Faulty, LocalObjects, MemoryObjects, Objects,
    Recording, Storing, SystemClock,
};
use std::{process::Command, sync::Arc, time::Duration};
use suite::{Fixture, suite};
use testkit::{fault_proxy, stores};

/// In a directory of its own, which is not there yet.
fn in_directory(make: impl Fn(LocalObjects) -> Arc<dyn Objects>) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let local = LocalObjects::new(&dir.path().join("repository"));
    Fixture {
        objects: make(local),
        _kept: Some(Box::new(dir)),
    }
}

/// Its leases are renewed so often that an attempt to take one is soon refused, and so seldom that a busy machine does not
/// take a holder for dead.
fn in_memory(make: impl Fn(MemoryObjects) -> Arc<dyn Objects>) -> Fixture {
    let memory = MemoryObjects::new().with_clock(Arc::new(SystemClock), Duration::from_millis(800));
    Fixture {
        objects: make(memory),
        _kept: None,
    }
}

fn with_pieces(threads: usize, piece_bytes: usize) -> Fixture {
    in_directory(|local| {
        Arc::new(local.with_storing(Storing {
            threads,
            piece_bytes,
        }))
    })
}

/// Keeps roots in a cache, as commands do.
fn cached(inner: Arc<dyn Objects>) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let spec = CacheSpec {
        dir: dir.path().join("cache"),
        max_bytes: 1 << 20,
        is_kept: |key| key.starts_with("backups/") && key.ends_with("/root.json"),
    };
    Fixture {
        objects: Arc::new(CachedObjects::new(inner, spec)),
        _kept: Some(Box::new(dir)),
    }
}

fn in_store(objects: impl Objects + 'static) -> Fixture {
    Fixture {
        objects: Arc::new(objects),
        _kept: None,
    }
}

suite!(local, in_directory(|local| Arc::new(local)));
suite!(local_in_small_pieces, with_pieces(3, 4096));
suite!(local_in_whole_parts, with_pieces(1, 8 << 20));
suite!(local_in_one_thread, with_pieces(0, 1 << 20));
suite!(memory, in_memory(|memory| Arc::new(memory)));
suite!(
    recorded_local,
    in_directory(|local| Arc::new(Recording::new(Arc::new(local))))
);
suite!(
    recorded_memory,
    in_memory(|memory| Arc::new(Recording::new(Arc::new(memory))))
);
suite!(
    faulty_local,
    in_directory(|local| Arc::new(Faulty::new(Arc::new(local))))
);
suite!(
    faulty_memory,
    in_memory(|memory| Arc::new(Faulty::new(Arc::new(memory))))
);
suite!(
    cached_memory,
    cached(in_memory(|memory| Arc::new(memory)).objects)
);
suite!(
    read_ahead,
    in_memory(|memory| Arc::new(CoalescedObjects::new(Arc::new(memory))))
);
suite!(cached_s3, cached(Arc::new(stores::in_s3())));
suite!(s3, in_store(stores::in_s3()));
suite!(azure, in_store(stores::in_azure()));
suite!(gcs, in_store(stores::in_gcs()));

/// The rest of this file in a process that plays no tricks.
#[test]
fn everything_holds_without_tricks() {
    if std::env::var_os("FULLBORE_NO_TRICKS").is_some() {
        return;
    }
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["storage::local", "--quiet"])
        .env("FULLBORE_NO_TRICKS", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success(), "{said}");
    assert!(!said.contains("running 0 tests"), "{said}");
}
