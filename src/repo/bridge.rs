//! The steps of [`protocol`](super::protocol) over [`storage::Objects`](crate::storage::Objects).

use super::objects::{Objects as OldObjects, Seized};
use crate::{
    error::Result,
    format::layout::INTENTS,
    storage::{Lease, Leased, Objects, PutIf, Take, lease_body},
};
use std::{collections::BTreeSet, sync::Arc};

/// Objects of a storage as the protocol sees them.
#[derive(Debug, Clone)]
pub(super) struct Bridge(pub(super) Arc<dyn Objects>);

impl Bridge {
    fn take(&self, key: &str, take: Take) -> Result<Seized<Box<dyn Lease>>> {
        Ok(match self.0.lease(key, &[], take)? {
            Leased::Ours(lease) => Seized::Free(lease),
            Leased::Held => Seized::Held,
            Leased::Absent => Seized::Absent,
            Leased::Unknown => Seized::Unknown,
        })
    }
}

impl OldObjects for Bridge {
    type Lock = Box<dyn Lease>;

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let name = |key: &str| {
            let below = key.strip_prefix(dir)?.strip_prefix('/')?;
            below.split('/').next().map(str::to_owned)
        };
        let listed = self.0.list(dir)?;
        let names: BTreeSet<_> = listed.iter().filter_map(|found| name(&found.key)).collect();
        Ok(names.into_iter().collect())
    }

    fn read(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let read = self.0.get(key)?.map(|(bytes, _)| bytes);
        Ok(read.map(|bytes| {
            if key.starts_with(INTENTS) {
                lease_body(&bytes).to_vec()
            } else {
                bytes
            }
        }))
    }

    fn size(&self, key: &str) -> Result<Option<u64>> {
        self.0.stat(key)
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<()> {
        self.0.put(key, bytes, &PutIf::Always).map(drop)
    }

    fn mark(&self, key: &str) -> Result<()> {
        self.put(key, &[])
    }

    fn sync(&self, dir: &str) -> Result<()> {
        self.0.settle(dir)
    }

    fn rename(&self, from: &str, to: &str) -> Result<bool> {
        let Some((bytes, _)) = self.0.get(from)? else {
            return Ok(false);
        };
        self.put(to, &bytes)?;
        self.remove(from)?;
        Ok(true)
    }

    fn remove(&self, key: &str) -> Result<()> {
        self.0.delete(&[key.to_owned()])
    }

    fn remove_dir(&self, _dir: &str) -> Result<()> {
        Ok(()) // it goes with its last object
    }

    fn seize(&self, key: &str) -> Result<Seized<Self::Lock>> {
        self.take(key, Take::Dead)
    }

    fn claim(&self, key: &str) -> Result<Seized<Self::Lock>> {
        self.take(key, Take::DeadOrNew)
    }
}
