//! Objects in an object store: S3 and all that speak its protocol, Google Cloud Storage, Azure Blob Storage.
//!
//! A request is tried again where that may help, with growing pauses and at least the pause that the store asks for. Where the
//! answer to a put on a condition was lost, a mark in the metadata of the object tells whether the put was done. Answers that were
//! cut or are not what was asked for are never data. Leases are those of [`LeaseTaker`], over conditional puts.
//!
//! Errors and debug output have the store's own words, and no part of a request: it holds credentials.

mod address;
mod answer;
mod client;
mod connect;
mod credentials;
mod endpoint;
mod environment;
mod listing;
mod pages;
mod profile;
mod settings;
mod store_settings;
mod transport;
mod unfinished;
mod upload;

pub use address::{CloudAddress, CloudService};
pub use environment::CloudEnvironment;
pub use settings::{
    AUTO_CONNECTIONS, AUTO_PARTS, CloudSettings, ObjectRetention, RetryPolicy, SETTING_KEYS,
    SETTING_VARIABLES, ServerEncryption, UploadChecksum,
};
pub use store_settings::StoreSettings;
pub use transport::CloudCounts;

use super::{
    LeaseTaker, Leased, ListedObject, LocalObjects, Objects, Put, PutIf, RENEWAL, SealedObjects,
    StorageAbilities, SystemClock, Take, Upload, Version,
};
use client::{CloudClient, Failed, PutOutcome};
use connect::Store;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    key_kind::max_document_bytes,
    layout::{ROOMS, letters},
};
use fullbore_wire::key::{check_key, check_prefix, is_below};
use futures_util::future::try_join_all;
use object_store::{ObjectMeta, PutMode, path::Path};
use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    num::NonZeroU64,
    ops::Range,
    sync::{Arc, atomic::Ordering::Relaxed},
};
use transport::CloudMeter;
use upload::CloudUpload;

/// Bytes of a range that are asked for in one request; longer ranges are read by several at the same time.
const RANGE_BYTES: u64 = 16 << 20;

/// With `--limit-download` a request is for the bytes of so many seconds, so that none holds back the others for long.
const LIMITED_SECONDS: u64 = 4;

/// The shortest range for which a request is worth while.
const MIN_RANGE_BYTES: u64 = 256 << 10;

/// Objects that are deleted by one request: as many as S3 takes.
const DELETE_BATCH: usize = 1000;

/// How often a range of several requests is read anew when the object was replaced meanwhile.
const PIN_TRIES: u32 = 3;

/// The objects below a prefix of a bucket. Clones share connections, limits and counts.
#[derive(Clone)]
pub struct CloudObjects {
    address: Arc<CloudAddress>,
    client: Arc<CloudClient>,
    leases: Arc<LeaseTaker>,
    /// Bytes of a range at most.
    range_bytes: u64,
}

impl fmt::Debug for CloudObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CloudObjects({})", self.address)
    }
}

impl CloudObjects {
    /// Returns the objects at an address. Sends no request: whether the bucket is there shows at the first one.
    ///
    /// Credentials are looked for in the environment, then in the files of the provider's own tools, then at the host.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for settings that do not fit, or the system's for a file that cannot be read.
    pub fn open(
        address: &CloudAddress,
        settings: &CloudSettings,
        environment: &CloudEnvironment,
    ) -> Result<Self> {
        let meter = Arc::new(CloudMeter::new(settings));
        let store = Store::open(address, settings, environment, &meter)?;
        let client = CloudClient::new(address.service, store, settings, meter)?;
        let renewal = settings.renewal.unwrap_or(RENEWAL);
        Ok(Self {
            address: Arc::new(address.clone()),
            client: Arc::new(client),
            leases: Arc::new(LeaseTaker::new(Arc::new(SystemClock), renewal)),
            range_bytes: range_bytes(settings),
        })
    }

    /// Returns the requests to the store so far.
    pub fn counts(&self) -> CloudCounts {
        self.client.requests.meter.counts()
    }

    /// Returns the key of the store for one of ours.
    fn path(&self, key: &str) -> Result<Path> {
        check_key(key)?;
        let full = if self.address.prefix.is_empty() {
            key.to_owned()
        } else {
            format!("{}/{key}", self.address.prefix)
        };
        let message = || format!("cannot use {key:?} as the key of an object");
        let path = Path::parse(self.store_key(&full));
        path.map_err(|error| Error::new(ErrorKind::Usage, message()).because(error.to_string()))
    }

    /// Returns the key of the store for a prefix; `None` for the whole bucket.
    fn prefix_path(&self, prefix: &str) -> Result<Option<Path>> {
        check_prefix(prefix)?;
        if !prefix.is_empty() {
            return self.path(prefix).map(Some);
        }
        let all = self.store_key(&self.address.prefix);
        Ok(Path::parse(all)
            .ok()
            .filter(|path| !path.as_ref().is_empty()))
    }

    /// Returns our key for one of the store.
    fn key_of(&self, path: &str) -> Option<String> {
        let full = self.plain_key(path);
        if self.address.prefix.is_empty() {
            return Some(full);
        }
        let below = full.strip_prefix(&self.address.prefix)?;
        below.strip_prefix('/').map(str::to_owned)
    }

    /// Returns the key as the store takes it: Azure takes a backslash for a slash.
    fn store_key(&self, key: &str) -> String {
        match self.address.service {
            CloudService::Azure => key.replace('%', "%25").replace('\\', "%5C"),
            CloudService::S3 | CloudService::Gcs => key.to_owned(),
        }
    }

    fn plain_key(&self, path: &str) -> String {
        match self.address.service {
            CloudService::Azure => path.replace("%5C", "\\").replace("%25", "%"),
            CloudService::S3 | CloudService::Gcs => path.to_owned(),
        }
    }

    fn size(&self, path: &Path) -> Result<Option<u64>, Failed> {
        self.client.wait(self.client.requests.size(path))
    }

    /// Reads several ranges at the same time, all of one version: the one that the first answer has.
    fn read_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<u8>, Failed> {
        let requests = &self.client.requests;
        let read = async {
            let (mut bytes, e_tag) = requests.read(path, ranges[0].clone(), None).await?;
            let rest = ranges[1..]
                .iter()
                .map(|range| requests.read(path, range.clone(), e_tag.as_deref()));
            for (part, _) in try_join_all(rest).await? {
                bytes.extend_from_slice(&part);
            }
            Ok(bytes)
        };
        self.client.wait(read)
    }

    /// Returns the objects below a prefix, in order. Not every store lists them in the order of bytes.
    async fn list_below(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        let path = self.prefix_path(prefix)?;
        let requests = &self.client.requests;
        let of_ours = |meta: &ObjectMeta| {
            let key = self.key_of(meta.location.as_ref())?;
            let is_ours = is_below(&key, prefix) && check_key(&key).is_ok();
            is_ours.then(|| ListedObject {
                bytes: meta.size,
                version: requests.version_of_meta(meta),
                key,
            })
        };
        let listed = requests.list(path.as_ref(), of_ours).await;
        let message = || format!("could not list the objects of {}", self.describe(prefix));
        let listed = listed.map_err(|failed| failed.error(message()))?;
        Ok(listed.into_values().collect())
    }

    /// Returns the objects in the directories of a repository that is a whole bucket, which may hold much more.
    fn list_rooms(&self) -> Result<Vec<ListedObject>> {
        let rooms = ROOMS.map(|room| self.list_below(room));
        let listed = self.client.wait(try_join_all(rooms))?;
        let mut all: Vec<ListedObject> = listed.into_iter().flatten().collect();
        all.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        Ok(all)
    }

    /// Returns a name that no other put has.
    fn mark() -> String {
        let seed = || RandomState::new().build_hasher().finish();
        letters(seed(), 12) + &letters(seed(), 12)
    }
}

/// Cuts a range into those of one request each.
fn cut(range: &Range<u64>, max_bytes: u64) -> Vec<Range<u64>> {
    let starts = (range.start..range.end).step_by(max_bytes as usize);
    starts
        .map(|start| start..range.end.min(start + max_bytes))
        .collect()
}

/// Returns the bytes that one request asks for at most.
fn range_bytes(settings: &CloudSettings) -> u64 {
    let limit = settings.download_limit.map(NonZeroU64::get);
    let limited = |rate: u64| rate.saturating_mul(LIMITED_SECONDS);
    limit.map_or(RANGE_BYTES, |rate| {
        limited(rate).clamp(MIN_RANGE_BYTES, RANGE_BYTES)
    })
}

impl Objects for CloudObjects {
    fn list(&self, prefix: &str) -> Result<Vec<ListedObject>> {
        if prefix.is_empty() && self.address.prefix.is_empty() {
            return self.list_rooms();
        }
        self.client.wait(self.list_below(prefix))
    }

    fn read_at(&self, key: &str, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let path = self.path(key)?;
        let message = || {
            format!(
                "could not read {len} bytes at byte {offset} of {}",
                self.describe(key)
            )
        };
        let absent = || Error::new(ErrorKind::NotFound, message()).because("it is not there");
        let end = offset
            .checked_add(len as u64)
            .filter(|end| *end <= i64::MAX as u64);
        let (Some(end), true) = (end, len > 0) else {
            // There is no range of no bytes, nor one so far behind.
            let size = self.size(&path).map_err(|failed| failed.error(message()))?;
            let size = size.ok_or_else(absent)?;
            out.clear();
            return match end {
                Some(end) if end <= size => Ok(()),
                _ => Err(Error::corrupt(message()).because("it ends too early")),
            };
        };
        let ranges = cut(&(offset..end), self.range_bytes);
        for tries in 1.. {
            match self.read_ranges(&path, &ranges) {
                Ok(bytes) => {
                    *out = bytes;
                    return Ok(());
                }
                Err(failed) if failed.is_absent() => return Err(absent()),
                Err(failed) if failed.is_replaced() && tries < PIN_TRIES => {}
                Err(failed) if failed.is_replaced() => {
                    return Err(Error::corrupt(message()).because("it is being replaced"));
                }
                Err(failed) => return Err(failed.error(message())),
            }
        }
        unreachable!("the last try returns")
    }

    fn get(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>> {
        let path = self.path(key)?;
        let request = self.client.requests.get(&path, max_document_bytes(key));
        let content = self.client.wait(request);
        let content = content
            .map_err(|failed| failed.error(format!("could not read {}", self.describe(key))))?;
        Ok(content.map(|content| (content.bytes, content.version)))
    }

    fn stat(&self, key: &str) -> Result<Option<u64>> {
        let path = self.path(key)?;
        let message = || format!("could not look at {}", self.describe(key));
        self.size(&path).map_err(|failed| failed.error(message()))
    }

    fn put(&self, key: &str, bytes: &[u8], condition: &PutIf) -> Result<Put> {
        let path = self.path(key)?;
        let requests = &self.client.requests;
        let mode = match condition {
            PutIf::Always => PutMode::Overwrite,
            PutIf::Absent => PutMode::Create,
            PutIf::Version(version) => requests.update_of(version),
        };
        // If the answer is lost, the mark tells whether the object that is there is this one.
        let mark = Self::mark();
        let put = requests.put(&path, bytes.to_vec().into(), mode, &mark, false);
        match self.client.wait(put) {
            Ok(PutOutcome::Done(version)) => Ok(Put::Done(version)),
            Ok(PutOutcome::Refused) => Ok(Put::Refused),
            Err(failed) => Err(failed.error(format!("could not write {}", self.describe(key)))),
        }
    }

    fn create(&self, key: &str) -> Result<Box<dyn Upload>> {
        let path = self.path(key)?;
        Ok(Box::new(CloudUpload::new(
            self.client.clone(),
            path,
            self.describe(key),
            Self::mark(),
        )))
    }

    fn delete(&self, keys: &[String]) -> Result<()> {
        let mut first_error = Ok(());
        let mut paths = Vec::new();
        for key in keys {
            match self.path(key) {
                Ok(path) => paths.push(path),
                Err(error) => first_error = first_error.and(Err(error)),
            }
        }
        for batch in paths.chunks(DELETE_BATCH) {
            let denied = self
                .client
                .wait(self.client.requests.delete(batch.to_vec()));
            let gone: Vec<String> = batch
                .iter()
                .filter(|path| !denied.contains_key(*path))
                .filter_map(|path| self.key_of(path.as_ref()))
                .collect();
            // Leases end with their intents, and need no request that lets go of them.
            self.leases.end_deleted(&gone);
            let count = denied.len();
            if let (Some((path, failed)), true) = (denied.into_iter().next(), first_error.is_ok()) {
                let key = self.key_of(path.as_ref()).unwrap_or_default();
                let error = failed.error(format!("could not delete {}", self.describe(&key)));
                let more = format!(
                    "{} more of {} objects could not be deleted",
                    count - 1,
                    batch.len()
                );
                first_error = Err(if count > 1 { error.detail(more) } else { error });
            }
        }
        first_error
    }

    /// Frees uploads where the store lists them. Azure keeps no list of uploads; it drops parts that are not used after a week.
    ///
    /// A store that refuses the list is not an error, and [`CloudCounts`] has it: the room of uploads that were cut off is all that it takes.
    fn abort_uploads(&self, prefix: &str) -> Result<()> {
        let path = self.prefix_path(prefix)?;
        let text = path.as_ref().map_or("", Path::as_ref);
        let below = if text.is_empty() {
            String::new()
        } else {
            format!("{text}/")
        };
        let describe = self.describe(prefix);
        let requests = &self.client.requests;
        let unfinished = self
            .client
            .wait(requests.all_unfinished(&below, &describe))?;
        let Some(unfinished) = unfinished else {
            requests.meter.unlisted_uploads.fetch_add(1, Relaxed);
            return Ok(());
        };
        let mut first_error = Ok(());
        for upload in unfinished {
            let key = self.key_of(&upload.key).filter(|key| is_below(key, prefix));
            let Some(Ok(path)) = key.map(|key| self.path(&key)) else {
                continue; // not ours, whatever it is
            };
            let aborted = self
                .client
                .wait(self.client.requests.abort(&path, &upload.upload_id));
            let message = || format!("could not abort an upload of {:?}", upload.key);
            first_error = first_error.and(aborted.map_err(|failed| failed.error(message())));
        }
        first_error
    }

    fn settle(&self, prefix: &str) -> Result<()> {
        check_prefix(prefix) // a store answers when what it stored is durable
    }

    fn lease(&self, key: &str, body: &[u8], take: Take) -> Result<Leased> {
        check_key(key)?;
        self.leases.take(Arc::new(self.clone()), key, body, take)
    }

    fn abilities(&self) -> StorageAbilities {
        StorageAbilities {
            has_locks: false,
            amends: true,
        }
    }

    fn answers_late(&self) -> bool {
        true
    }

    fn describe(&self, key: &str) -> String {
        if key.is_empty() {
            return format!("{:?}", self.address.to_string());
        }
        format!("{:?}", format!("{}/{key}", self.address))
    }

    fn as_local(&self) -> Option<&LocalObjects> {
        None
    }

    fn as_sealed(&self) -> Option<&SealedObjects> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_into_requests_that_follow_each_other() {
        let one = cut(&(5..9), RANGE_BYTES);
        assert_eq!((one.len(), one[0].start, one[0].end), (1, 5, 9));
        let whole = 7..7 + 2 * RANGE_BYTES + 1;
        let ranges = cut(&whole, RANGE_BYTES);
        assert_eq!(ranges.len(), 3);
        assert_eq!((ranges[0].start, ranges[2].end), (whole.start, whole.end));
        assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
    }
}
