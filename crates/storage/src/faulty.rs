//! A wrapper that fails, truncates or delays chosen operations: tests say what a command leaves when its storage fails.

use super::{
    Lease, Leased, ListedObject, LocalObjects, Objects, Operation, Put, PutIf, SealedObjects,
    StorageAbilities, StoredObject, Take, Upload, Version,
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::Locked;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// What happens to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is done, and an error of this kind is returned.
    Fail(ErrorKind),
    /// The operation is done, and an error of this kind is returned.
    FailLate(ErrorKind),
    /// Half of the content is given or taken. Reads of an object whole and listings succeed with the first half; a read of a range is
    /// [`ErrorKind::Corrupt`]; what writes stores the first half and fails. Other operations are done.
    Truncate,
    /// The operation is done after this time.
    Delay(Duration),
}

/// Passes operations on to the storage inside, but for those that a fault was planned for. Clones count together.
#[derive(Debug, Clone)]
pub struct Faulty {
    inner: Arc<dyn Objects>,
    plan: Arc<Mutex<Plan>>,
}

#[derive(Debug, Default)]
struct Plan {
    calls: BTreeMap<Operation, u64>,
    faults: BTreeMap<(Operation, u64), Fault>,
}

/// What is left to do of a fault when the operation begins.
#[derive(Debug, Clone, Copy)]
enum Rest {
    Nothing,
    Late(ErrorKind),
    Half,
}

impl Faulty {
    /// Wraps objects, without a fault.
    pub fn new(inner: Arc<dyn Objects>) -> Self {
        Self {
            inner,
            plan: Arc::default(),
        }
    }

    /// Plans a fault for the `nth` call of an operation, counted from 1 and from the first call of this wrapper.
    #[must_use]
    pub fn with(self, operation: Operation, nth: u64, fault: Fault) -> Self {
        self.plan.locked().faults.insert((operation, nth), fault);
        self
    }

    /// Returns the number of calls of an operation so far.
    pub fn calls(&self, operation: Operation) -> u64 {
        self.plan
            .locked()
            .calls
            .get(&operation)
            .copied()
            .unwrap_or_default()
    }
}

fn begin(plan: &Mutex<Plan>, operation: Operation) -> Result<Rest> {
    let mut locked = plan.locked();
    let calls = locked.calls.entry(operation).or_default();
    *calls += 1;
    let call = *calls;
    let fault = locked.faults.remove(&(operation, call));
    drop(locked);
    match fault {
        None => Ok(Rest::Nothing),
        Some(Fault::Fail(kind)) => Err(injected(operation, kind)),
        Some(Fault::FailLate(kind)) => Ok(Rest::Late(kind)),
        Some(Fault::Truncate) => Ok(Rest::Half),
        Some(Fault::Delay(time)) => {
            thread::sleep(time);
            Ok(Rest::Nothing)
        }
    }
}

/// Returns the result of an operation that was done, unless its fault comes late.
fn end<T>(operation: Operation, rest: Rest, result: Result<T>) -> Result<T> {
    match rest {
        Rest::Late(kind) => result.and(Err(injected(operation, kind))),
        _ => result,
    }
}

fn injected(operation: Operation, kind: ErrorKind) -> Error {
    Error::new(
        kind,
        format!("could not do {operation:?}: a fault was planned"),
    )
}

fn half<T>(all: &[T], rest: Rest) -> &[T] {
    if matches!(rest, Rest::Half) {
        &all[..all.len() / 2]
    } else {
        all
    }
}

/// Returns the result of a write that stored half of its content.
fn end_write<T>(operation: Operation, rest: Rest, result: Result<T>) -> Result<T> {
    match rest {
        Rest::Half => result.and(Err(injected(operation, ErrorKind::Unreachable))),
        rest => end(operation, rest, result),
    }
}

impl Objects for Faulty {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        let rest = begin(&self.plan, Operation::List)?;
        let listed = self.inner.list(prefix)?;
        end(Operation::List, rest, Ok(half(&listed, rest).to_vec()))
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let rest = begin(&self.plan, Operation::ReadAt)?;
        self.inner.read_at(key, offset, len, out)?;
        if matches!(rest, Rest::Half) {
            out.truncate(len / 2);
            return Err(injected(Operation::ReadAt, ErrorKind::Corrupt));
        }
        end(Operation::ReadAt, rest, Ok(()))
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        let rest = begin(&self.plan, Operation::Get)?;
        let got = self.inner.get(key)?;
        end(
            Operation::Get,
            rest,
            Ok(got.map(|(bytes, version)| (half(&bytes, rest).to_vec(), version))),
        )
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        let rest = begin(&self.plan, Operation::Stat)?;
        end(Operation::Stat, rest, self.inner.stat(key))
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        let rest = begin(&self.plan, Operation::Put)?;
        end_write(
            Operation::Put,
            rest,
            self.inner.put(key, half(bytes, rest), condition),
        )
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        let rest = begin(&self.plan, Operation::Create)?;
        let inner = end(Operation::Create, rest, self.inner.create(key))?;
        Ok(Box::new(FaultyUpload {
            inner,
            plan: self.plan.clone(),
        }))
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let rest = begin(&self.plan, Operation::Delete)?;
        end_write(Operation::Delete, rest, self.inner.delete(half(keys, rest)))
    }

    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        let rest = begin(&self.plan, Operation::AbortUploads)?;
        end(
            Operation::AbortUploads,
            rest,
            self.inner.abort_uploads(prefix),
        )
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        let rest = begin(&self.plan, Operation::Settle)?;
        end(Operation::Settle, rest, self.inner.settle(prefix))
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        let rest = begin(&self.plan, Operation::Lease)?;
        let leased = end(Operation::Lease, rest, self.inner.lease(key, body, take))?;
        let Leased::Ours(inner) = leased else {
            return Ok(leased);
        };
        Ok(Leased::Ours(Box::new(FaultyLease {
            inner,
            plan: self.plan.clone(),
        })))
    }

    fn abilities(&self) -> StorageAbilities {
        self.inner.abilities()
    }

    fn answers_late(&self) -> bool {
        self.inner.answers_late()
    }

    fn describe(&self, key: &str) -> String {
        self.inner.describe(key)
    }

    fn as_local(&self) -> Option<&LocalObjects> {
        self.inner.as_local()
    }

    fn as_sealed(&self) -> Option<&SealedObjects> {
        self.inner.as_sealed()
    }
}

#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn Upload>,
    plan: Arc<Mutex<Plan>>,
}

impl Upload for FaultyUpload {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let rest = begin(&self.plan, Operation::Append)?;
        end_write(
            Operation::Append,
            rest,
            self.inner.append(half(bytes, rest)),
        )
    }

    fn amend(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let rest = begin(&self.plan, Operation::Amend)?;
        end_write(
            Operation::Amend,
            rest,
            self.inner.amend(offset, half(bytes, rest)),
        )
    }

    fn finish(self: Box<Self>) -> Result<StoredObject> {
        let rest = begin(&self.plan, Operation::Finish)?;
        end(Operation::Finish, rest, self.inner.finish())
    }

    fn abort(self: Box<Self>) {
        // An abort returns no error: only a delay has an effect here.
        let _ = begin(&self.plan, Operation::Abort);
        self.inner.abort();
    }
}

#[derive(Debug)]
struct FaultyLease {
    inner: Box<dyn Lease>,
    plan: Arc<Mutex<Plan>>,
}

impl Lease for FaultyLease {
    fn update(&mut self, body: &[u8]) -> Result<()> {
        let rest = begin(&self.plan, Operation::UpdateLease)?;
        end_write(
            Operation::UpdateLease,
            rest,
            self.inner.update(half(body, rest)),
        )
    }

    fn is_ours(&self) -> bool {
        self.inner.is_ours()
    }
}
