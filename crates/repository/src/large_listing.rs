//! The objects of a repository with so many that a store lists them in several requests.

use fullbore_storage::ListedObject;
use std::{collections::BTreeMap, sync::Arc};

/// Objects that a store lists in one request.
const OBJECTS_OF_A_REQUEST: usize = 1000;

/// Objects that a store lists in several requests.
#[derive(Debug, Clone)]
pub(super) struct LargeListing {
    /// The bytes of all objects, by their keys.
    pub sizes: Arc<BTreeMap<String, u64>>,
}

impl LargeListing {
    /// Keeps a listing of all objects; `None` if one request is enough for it.
    pub(super) fn of(listed: Vec<ListedObject>) -> Option<Self> {
        if listed.len() <= OBJECTS_OF_A_REQUEST {
            return None;
        }
        let sizes = listed.into_iter().map(|object| (object.key, object.bytes));
        Some(Self {
            sizes: Arc::new(sizes.collect()),
        })
    }

    /// Returns the requests that a listing of all objects takes.
    pub(super) fn requests(&self) -> usize {
        self.sizes.len().div_ceil(OBJECTS_OF_A_REQUEST)
    }
}
