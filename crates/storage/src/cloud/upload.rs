//! Uploads: parts of 8 MiB or more, several on their way at the same time.
//!
//! An upload that has one part only is one put. Of others the first part is sent last: until then its bytes can be amended.

use super::client::{CloudClient, Failed, Requests};
use crate::{
    StoredObject, Upload,
    parts::{amended_range, part_digests_of},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    root::PART_BYTES,
};
use fullbore_platform::debug;
use object_store::{PutMode, PutPayload, multipart::PartId, path::Path};
use std::{
    collections::VecDeque,
    fmt, mem,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinHandle;

/// Parts of one size before the next ones have twice as many bytes. 10,000 parts, which is what stores allow, are 8 TiB then.
const PARTS_OF_A_SIZE: usize = 1000;

/// Returns the bytes of a part, from 0. Always whole parts of the digests.
fn part_bytes(number: usize) -> usize {
    (PART_BYTES as usize) << (number / PARTS_OF_A_SIZE)
}

/// Time for the parts on their way when an upload is given up.
const GRACE: Duration = Duration::from_secs(10);

type SentPart = JoinHandle<(usize, Result<PartId, Failed>)>;

pub(super) struct CloudUpload {
    client: Arc<CloudClient>,
    path: Path,
    describe: String,
    /// Tells this upload from all others in the metadata of the object.
    mark: String,
    /// The first part, from when the second one began.
    first: Option<Vec<u8>>,
    /// What was appended and not sent yet.
    buffer: Vec<u8>,
    /// The name that the store gave the upload, from its second part on.
    id: Option<String>,
    /// Parts that were given a number.
    part_count: usize,
    /// Parts that are on their way, in order.
    away: VecDeque<SentPart>,
    stored: Vec<(usize, PartId)>,
    /// Digests of the parts behind the first.
    digests: Vec<u64>,
    bytes: u64,
    has_failed: bool,
}

impl fmt::Debug for CloudUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CloudUpload({})", self.describe)
    }
}

impl CloudUpload {
    pub(super) fn new(
        client: Arc<CloudClient>,
        path: Path,
        describe: String,
        mark: String,
    ) -> Self {
        Self {
            client,
            path,
            describe,
            mark,
            first: None,
            buffer: Vec::new(),
            id: None,
            part_count: 0,
            away: VecDeque::new(),
            stored: Vec::new(),
            digests: Vec::new(),
            bytes: 0,
            has_failed: false,
        }
    }

    fn what(&self) -> String {
        format!("could not write {}", self.describe)
    }

    fn failed(&mut self, failed: &Failed) -> Error {
        self.has_failed = true;
        failed.error(self.what())
    }

    fn check_not_failed(&self) -> Result<()> {
        if self.has_failed {
            let error = Error::new(ErrorKind::Unreachable, self.what());
            return Err(error.because("an earlier part of it could not be stored"));
        }
        Ok(())
    }

    /// Sends the buffer, which is a whole part: more follows.
    fn end_part(&mut self) -> Result<()> {
        let part = mem::take(&mut self.buffer);
        let number = self.part_count;
        self.part_count += 1;
        if number == 0 {
            self.first = Some(part);
            return Ok(());
        }
        self.digests.extend(part_digests_of(&part));
        self.send(number, part)
    }

    fn send(&mut self, number: usize, part: Vec<u8>) -> Result<()> {
        let id = match &self.id {
            Some(id) => id.clone(),
            None => {
                let id = self
                    .client
                    .wait(self.client.requests.begin(&self.path, &self.mark));
                let id = id.map_err(|failed| self.failed(&failed))?;
                self.id.insert(id).clone()
            }
        };
        while self.away.front().is_some_and(JoinHandle::is_finished) {
            self.await_oldest()?;
        }
        let requests = self.client.requests.clone();
        // All uploads share what may be on its way: the end of one is sent while the next one begins.
        let place = self.client.wait(requests.part_place());
        self.client.wait(requests.meter.may_send(part.len() as u64));
        let path = self.path.clone();
        let task = self.client.start(async move {
            let sent = send_part(requests, path, id, number, part).await;
            drop(place);
            sent
        });
        self.away.push_back(task);
        Ok(())
    }

    fn await_oldest(&mut self) -> Result<()> {
        let Some(task) = self.away.pop_front() else {
            return Ok(());
        };
        match self.client.wait(task) {
            Ok((number, Ok(part))) => {
                self.stored.push((number, part));
                Ok(())
            }
            Ok((_, Err(failed))) => Err(self.failed(&failed)),
            Err(error) => {
                self.has_failed = true;
                Err(Error::new(ErrorKind::Bug, self.what()).because(error))
            }
        }
    }

    /// Stores the object by one put.
    fn finish_small(&mut self) -> Result<StoredObject> {
        let bytes = mem::take(&mut self.buffer);
        let parts = part_digests_of(&bytes);
        let may_send = self.client.requests.meter.may_send(bytes.len() as u64);
        self.client.wait(may_send);
        let put = self.client.requests.put(
            &self.path,
            bytes.into(),
            PutMode::Overwrite,
            &self.mark,
            true,
        );
        let put = self.client.wait(put);
        put.map_err(|failed| self.failed(&failed))?;
        Ok(StoredObject {
            bytes: self.bytes,
            parts,
        })
    }

    fn finish_parts(&mut self, first: Vec<u8>) -> Result<StoredObject> {
        let mut parts = part_digests_of(&first);
        if !self.buffer.is_empty() {
            self.end_part()?;
        }
        self.send(0, first)?;
        while !self.away.is_empty() {
            self.await_oldest()?;
        }
        parts.append(&mut self.digests);
        let mut stored = mem::take(&mut self.stored);
        stored.sort_unstable_by_key(|(number, _)| *number);
        let ids = stored.into_iter().map(|(_, part)| part).collect();
        let id = self.id.clone().unwrap_or_default(); // there is one: the first part was sent
        let complete = self
            .client
            .requests
            .complete(&self.path, &id, ids, self.bytes, &self.mark);
        let complete = self.client.wait(complete);
        complete.map_err(|failed| self.failed(&failed))?;
        self.id = None;
        Ok(StoredObject {
            bytes: self.bytes,
            parts,
        })
    }

    /// Waits for the parts that are on their way, then gives up all that were stored.
    fn give_up(&mut self) {
        let away = mem::take(&mut self.away);
        self.client.wait(end_all(away));
        let Some(id) = self.id.take() else {
            return;
        };
        if let Err(failed) = self
            .client
            .wait(self.client.requests.abort(&self.path, &id))
        {
            let message = format!("could not abort the upload of {}", self.describe);
            debug(|| failed.error(message).line());
        }
    }
}

/// Waits for the end of parts. A part that is cut off may still reach the store after the upload was aborted, and takes room there. So parts
/// end first, if that does not take too long.
async fn end_all(parts: VecDeque<SentPart>) {
    let end = Instant::now() + GRACE;
    for mut part in parts {
        let left = end.saturating_duration_since(Instant::now());
        if tokio::time::timeout(left, &mut part).await.is_err() {
            part.abort();
            let _ = part.await; // it was cut off
        }
    }
}

async fn send_part(
    requests: Arc<Requests>,
    path: Path,
    id: String,
    number: usize,
    part: Vec<u8>,
) -> (usize, Result<PartId, Failed>) {
    let payload = PutPayload::from(part);
    (number, requests.put_part(&path, &id, number, payload).await)
}

impl Upload for CloudUpload {
    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.check_not_failed()?;
        while !bytes.is_empty() {
            let room = part_bytes(self.part_count) - self.buffer.len();
            if room == 0 {
                self.end_part()?;
                continue;
            }
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            self.bytes += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    fn amend(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_not_failed()?;
        let range = amended_range(offset, bytes.len(), self.bytes)?;
        self.first.as_mut().unwrap_or(&mut self.buffer)[range].copy_from_slice(bytes);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<StoredObject> {
        self.check_not_failed()?;
        match self.first.take() {
            Some(first) => self.finish_parts(first),
            None => self.finish_small(),
        }
    }

    fn abort(self: Box<Self>) {}
}

impl Drop for CloudUpload {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_parts_hold_the_largest_object_of_a_store() {
        let sizes: Vec<u64> = (0..10_000)
            .map(|number| part_bytes(number) as u64)
            .collect();
        assert!(
            sizes
                .iter()
                .all(|bytes| bytes % PART_BYTES == 0 && (5 << 20..=5 << 30).contains(bytes))
        );
        assert!(sizes.iter().sum::<u64>() > 5 << 40, "5 TiB");
        assert!(sizes.is_sorted());
    }
}
