//! Requests to one bucket: each is tried again where that may help, and none of them half done.
//!
//! All that is asynchronous is below here: callers are threads that wait ([`Requests::wait`]). Two threads of a runtime of our own
//! carry the bytes.

use super::{
    address::CloudService,
    answer::Answer,
    connect::Store,
    settings::{AUTO_CONNECTIONS, AUTO_PARTS, CloudSettings, RetryPolicy, SLOWEST_BYTES},
    transport::{CloudMeter, LAST_ANSWER, SMALL_BYTES, words_of},
};
use crate::Version;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::{debug, queue::Locked};
use futures_util::{FutureExt, StreamExt};
use object_store::{
    Attribute, Attributes, GetOptions, GetRange, ObjectMeta, PutMode, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, UpdateVersion, client::HttpError, multipart::PartId,
    path::Path,
};
use std::{
    collections::BTreeMap,
    future::Future,
    num::NonZeroUsize,
    ops::Range,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
};

/// The mark of one put, in the metadata of the object: tells an own put whose answer was lost from that of another.
const MARK: &str = "fullbore";

/// The name of requests for a range. `--limit-download` is waited for before them, as their length is known.
const READ: &str = "read";

/// Threads that carry the bytes of all requests. TLS of one connection runs on one of them.
const CARRIERS: usize = 2;

/// Why one try of a request failed.
pub(super) enum TryError {
    /// As the crate says; the last answer tells more.
    Store(object_store::Error),
    /// The object ends before the bytes that were asked for.
    EndsEarly,
    /// The answer has other bytes than were asked for.
    Wrong(&'static str),
    /// The answers have no end.
    TooMuch(&'static str),
}

impl From<object_store::Error> for TryError {
    fn from(error: object_store::Error) -> Self {
        Self::Store(error)
    }
}

/// Why a request failed for good.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) answer: Box<Answer>,
    /// Was a try before the last one perhaps carried out?
    was_ambiguous: bool,
    ends_early: bool,
    wrong: Option<&'static str>,
}

impl Failed {
    pub(super) fn is_absent(&self) -> bool {
        self.answer.status == Some(404) && self.answer.kind() == ErrorKind::NotFound
    }

    /// Returns whether the object is another one than that of the first answer.
    pub(super) fn is_replaced(&self) -> bool {
        self.answer.status == Some(412)
    }

    /// Returns whether the store refuses this kind of request, whatever it is about.
    pub(super) fn is_refused_kind(&self) -> bool {
        matches!(
            self.answer.kind(),
            ErrorKind::Permission | ErrorKind::Unsupported
        )
    }

    fn is_out_of_range(&self) -> bool {
        self.answer.status == Some(416)
    }

    /// Returns an error of the crate; `what` says what could not be done.
    pub(super) fn error(&self, what: String) -> Error {
        if self.ends_early || self.is_out_of_range() {
            return Error::corrupt(what).because("it ends too early");
        }
        if let Some(wrong) = self.wrong {
            return Error::corrupt(what).because(wrong);
        }
        let error = Error::new(self.answer.kind(), what).because(self.answer.words());
        match self.answer.hint() {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

/// What came of a conditional put.
pub(super) enum PutOutcome {
    Done(Version),
    Refused,
}

/// The content of an object that was read whole.
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) version: Version,
}

/// The runtime, and what its tasks share.
pub(super) struct CloudClient {
    runtime: Runtime,
    pub(super) requests: Arc<Requests>,
}

/// What tasks share; they never hold the runtime, which cannot end within one of its own threads.
pub(super) struct Requests {
    pub(super) service: CloudService,
    pub(super) store: Store,
    permits: Semaphore,
    /// Places for parts of uploads, which are in memory until they are stored.
    part_places: Arc<Semaphore>,
    retries: RetryPolicy,
    pub(super) meter: Arc<CloudMeter>,
    storage_class: Option<String>,
}

impl CloudClient {
    pub(super) fn new(
        service: CloudService,
        store: Store,
        settings: &CloudSettings,
        meter: Arc<CloudMeter>,
    ) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(CARRIERS)
            .thread_name("store")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| {
            Error::io(
                "could not start threads for the requests to the store",
                error,
            )
        })?;
        let connections = settings
            .connections
            .map_or(AUTO_CONNECTIONS, |connections| connections.get());
        Ok(Self {
            runtime,
            requests: Arc::new(Requests {
                service,
                store,
                permits: Semaphore::new(connections.min(Semaphore::MAX_PERMITS)),
                part_places: Arc::new(Semaphore::new(
                    settings.parts_away.map_or(AUTO_PARTS, NonZeroUsize::get),
                )),
                retries: settings.retries.clone(),
                meter,
                storage_class: settings.storage_class.clone(),
            }),
        })
    }

    /// Waits on this thread.
    pub(super) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Starts something that goes on while this thread does other things.
    pub(super) fn start<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.spawn(future)
    }
}

fn bounded(range: &Range<u64>) -> Option<GetRange> {
    Some(GetRange::Bounded(range.clone()))
}

impl Requests {
    /// Waits for room for one more part of an upload on its way.
    pub(super) async fn part_place(&self) -> Option<OwnedSemaphorePermit> {
        self.part_places.clone().acquire_owned().await.ok() // the semaphore is never closed
    }

    /// Makes one request, up to as many times as the policy allows, with one permit for each try. `bytes` go either way at most.
    ///
    /// The limits of the rate are waited for outside of the time that the store has for its answer.
    ///
    /// The second of what is returned tells whether a try that failed was perhaps carried out.
    pub(super) async fn retried<T, F, A>(
        &self,
        name: &str,
        bytes: u64,
        mut attempt: F,
    ) -> Result<(T, bool), Failed>
    where
        F: FnMut() -> A,
        A: Future<Output = Result<T, TryError>>,
    {
        let patience = self.retries.patience + Duration::from_secs(bytes / SLOWEST_BYTES);
        let is_read = name == READ;
        let mut was_ambiguous = false;
        for tries in 0.. {
            let last = Arc::new(Mutex::new(Answer::default()));
            if is_read {
                self.meter.may_receive(bytes).await;
            }
            let outcome = {
                // A renewal of a lease does not wait behind the parts of an upload.
                let _permit = match (name, bytes <= SMALL_BYTES) {
                    ("put", true) => None,
                    _ => self.permits.acquire().await.ok(), // the semaphore is never closed
                };
                let attempt = LAST_ANSWER.scope(last.clone(), attempt());
                let attempt = AssertUnwindSafe(attempt).catch_unwind();
                tokio::time::timeout(patience, attempt).await
            };
            let mut answer = last.locked().clone();
            if !is_read {
                self.meter.received(answer.bytes).await;
            }
            let (mut ends_early, mut wrong) = (false, None);
            match outcome {
                Ok(Ok(Ok(done))) => return Ok((done, was_ambiguous)),
                Ok(Ok(Err(TryError::EndsEarly))) => ends_early = true,
                Ok(Ok(Err(TryError::Wrong(why)))) => wrong = Some(why),
                Ok(Ok(Err(TryError::TooMuch(why)))) => answer.unusable = Some(why.to_owned()),
                Ok(Ok(Err(TryError::Store(error)))) => look_into(&error, &mut answer),
                // The crate takes much of a store for granted. That of one request does not end this process.
                Ok(Err(_)) => answer.unusable = Some("this answer cannot be read".to_owned()),
                Err(_) => answer = Answer::broken("the store did not answer in time"),
            }
            let may_pass = !ends_early && (wrong.is_some() || answer.may_pass(self.service));
            if !may_pass || tries + 1 >= self.retries.tries {
                return Err(Failed {
                    answer: Box::new(answer),
                    was_ambiguous,
                    ends_early,
                    wrong,
                });
            }
            was_ambiguous |= answer.is_ambiguous();
            let pause = self.retries.pause(tries, &answer);
            debug(|| format!("{name}: {}; again in {pause:?}", answer.words()));
            self.meter.retries.fetch_add(1, Relaxed);
            self.meter
                .paused_micros
                .fetch_add(pause.as_micros() as u64, Relaxed);
            tokio::time::sleep(pause).await;
        }
        unreachable!("the last try returns")
    }

    /// Reads a range. Its answers all have one version, the one that `pinned` names if it does.
    pub(super) async fn read(
        &self,
        path: &Path,
        range: Range<u64>,
        pinned: Option<&str>,
    ) -> Result<(Vec<u8>, Option<String>), Failed> {
        let len = range.end - range.start;
        let read = || async {
            let options = GetOptions {
                range: bounded(&range),
                if_match: pinned.map(str::to_owned),
                ..GetOptions::default()
            };
            let found = self.store.objects.get_opts(path, options).await?;
            if found.meta.size < range.end {
                return Err(TryError::EndsEarly);
            }
            if found.range != range {
                return Err(TryError::Wrong(
                    "the store sent another range than was asked for",
                ));
            }
            let e_tag = found.meta.e_tag.clone();
            let mut bytes = Vec::with_capacity(len as usize);
            let mut stream = found.into_stream();
            while let Some(chunk) = stream.next().await {
                bytes.extend_from_slice(&chunk?);
                // A store that sends more than was asked for may send without end.
                if bytes.len() as u64 > len {
                    break;
                }
            }
            if bytes.len() as u64 != len {
                return Err(TryError::Wrong(
                    "the answer of the store has another length than was asked for",
                ));
            }
            Ok((bytes, e_tag))
        };
        Ok(self.retried(READ, len, read).await?.0)
    }

    /// Returns the length of an object; `None` if it is absent.
    pub(super) async fn size(&self, path: &Path) -> Result<Option<u64>, Failed> {
        Ok(self.head(path).await?.map(|(meta, _)| meta.size))
    }

    async fn head(&self, path: &Path) -> Result<Option<(ObjectMeta, Attributes)>, Failed> {
        let head = || async {
            let options = GetOptions {
                head: true,
                ..GetOptions::default()
            };
            let found = self.store.objects.get_opts(path, options).await?;
            Ok((found.meta, found.attributes))
        };
        match self.retried("head", 0, head).await {
            Ok((found, _)) => Ok(Some(found)),
            Err(failed) if failed.is_absent() => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// Returns all bytes of an object that has no more than `max_bytes`; `None` if it is absent, [`TryError::EndsEarly`] never.
    pub(super) async fn get(&self, path: &Path, max_bytes: u64) -> Result<Option<Content>, Failed> {
        let get = || async {
            let found = self
                .store
                .objects
                .get_opts(path, GetOptions::default())
                .await?;
            let size = found.meta.size;
            // No error, which would be tried again.
            if size > max_bytes {
                return Ok(None);
            }
            let version = self.version_of_meta(&found.meta);
            let bytes = found.bytes().await?.to_vec();
            if bytes.len() as u64 != size {
                return Err(TryError::Wrong(
                    "the answer of the store has another length than the object",
                ));
            }
            let version =
                version.ok_or(TryError::Wrong("the store gives no version of the object"))?;
            Ok(Some(Content { bytes, version }))
        };
        match self.retried("get", max_bytes.min(16 << 20), get).await {
            Ok((Some(content), _)) => Ok(Some(content)),
            Ok((None, _)) => Err(Failed {
                answer: Box::default(),
                was_ambiguous: false,
                ends_early: false,
                wrong: Some("it is too large"),
            }),
            Err(failed) if failed.is_absent() => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    /// Returns the version of an object; a listing of Google has none.
    pub(super) fn version_of_meta(&self, meta: &ObjectMeta) -> Option<Version> {
        self.version(meta.e_tag.as_deref(), meta.version.as_deref())
    }

    fn version_of_put(&self, put: &PutResult) -> Option<Version> {
        self.version(put.e_tag.as_deref(), put.version.as_deref())
    }

    /// Returns the version of an object. Google's conditions are on the number of a generation, all others' on the ETag.
    fn version(&self, e_tag: Option<&str>, number: Option<&str>) -> Option<Version> {
        match self.service {
            CloudService::Gcs => number.map(Version::new),
            CloudService::S3 | CloudService::Azure => e_tag.map(Version::new),
        }
    }

    /// Returns the condition of a put on a version.
    pub(super) fn update_of(&self, version: &Version) -> PutMode {
        let text = Some(version.as_str().to_owned());
        PutMode::Update(match self.service {
            CloudService::Gcs => UpdateVersion {
                e_tag: None,
                version: text,
            },
            CloudService::S3 | CloudService::Azure => UpdateVersion {
                e_tag: text,
                version: None,
            },
        })
    }

    /// Puts an object. Where an answer was lost, the mark in the metadata of the object tells whose it is.
    pub(super) async fn put(
        &self,
        path: &Path,
        payload: PutPayload,
        mode: PutMode,
        mark: &str,
        class: bool,
    ) -> Result<PutOutcome, Failed> {
        let len = payload.content_length() as u64;
        let is_conditional = mode != PutMode::Overwrite;
        let attributes = self.attributes(mark, class);
        let put = || async {
            let options = PutOptions {
                mode: mode.clone(),
                attributes: attributes.clone(),
                ..PutOptions::default()
            };
            let put = self
                .store
                .puts
                .put_opts(path, payload.clone(), options)
                .await?;
            self.version_of_put(&put)
                .ok_or(TryError::Wrong("the store gives no version of the object"))
        };
        let failed = match self.retried("put", len, put).await {
            Ok((version, _)) => return Ok(PutOutcome::Done(version)),
            Err(failed) => failed,
        };
        // A condition on a version of an object that is absent is answered by 404.
        let is_update = matches!(mode, PutMode::Update(_));
        let is_refused = failed.answer.is_refusal(self.service) || is_update && failed.is_absent();
        if !is_conditional || !is_refused {
            return Err(failed);
        }
        if !failed.was_ambiguous {
            return Ok(PutOutcome::Refused);
        }
        let own = self
            .head(path)
            .await?
            .filter(|(_, attributes)| has_mark(attributes, mark));
        Ok(
            match own.and_then(|(meta, _)| self.version_of_meta(&meta)) {
                Some(version) => PutOutcome::Done(version),
                None => PutOutcome::Refused,
            },
        )
    }

    fn attributes(&self, mark: &str, class: bool) -> Attributes {
        let mut attributes = Attributes::new();
        attributes.insert(Attribute::Metadata(MARK.into()), mark.to_owned().into());
        if let (true, Some(class)) = (class, &self.storage_class) {
            attributes.insert(Attribute::StorageClass, class.clone().into());
        }
        attributes
    }

    /// Deletes objects, and returns those that could not be deleted with the reason.
    pub(super) async fn delete(&self, paths: Vec<Path>) -> BTreeMap<Path, Failed> {
        let left = Mutex::new(paths);
        let denied = Mutex::new(BTreeMap::new());
        let delete = || async {
            // Each try asks only for the objects that earlier tries have left.
            let asked = left.locked().clone();
            let stream = futures_util::stream::iter(asked.clone().into_iter().map(Ok)).boxed();
            let answers: Vec<_> = self.store.objects.delete_stream(stream).collect().await;
            self.sort_answers(asked, answers, &left, &denied)
        };
        let failed = self.retried("delete", 0, delete).await.err();
        let mut denied = denied.into_inner().unwrap_or_default();
        if let Some(failed) = failed {
            for path in left.into_inner().unwrap_or_default() {
                denied.insert(path, failed.copy());
            }
        }
        denied
    }

    /// Takes out of `left` what was deleted or never will be. An error if something is left.
    fn sort_answers(
        &self,
        asked: Vec<Path>,
        answers: Vec<object_store::Result<Path>>,
        left: &Mutex<Vec<Path>>,
        denied: &Mutex<BTreeMap<Path, Failed>>,
    ) -> Result<(), TryError> {
        // The error of a whole request comes once, in place of an answer for each object.
        if answers.len() != asked.len() {
            let error = answers.into_iter().find_map(Result::err);
            return Err(error.map_or(
                TryError::Wrong("the store did not answer for every object"),
                TryError::Store,
            ));
        }
        let mut again = Vec::new();
        let mut last_error = None;
        for (path, answer) in asked.into_iter().zip(answers) {
            let error = match answer {
                Ok(_) | Err(object_store::Error::NotFound { .. }) => continue,
                Err(error) => error,
            };
            match refusal_of_delete(&error) {
                Some(answer) => {
                    denied.locked().insert(path, Failed::of(answer));
                }
                None => {
                    again.push(path);
                    last_error = Some(error);
                }
            }
        }
        *left.locked() = again;
        match last_error {
            Some(error) => Err(TryError::Store(error)),
            None => Ok(()),
        }
    }

    /// Begins an upload in parts, and returns its name.
    pub(super) async fn begin(&self, path: &Path, mark: &str) -> Result<String, Failed> {
        let attributes = self.attributes(mark, true);
        let begin = || async {
            let options = PutMultipartOptions {
                attributes: attributes.clone(),
                ..PutMultipartOptions::default()
            };
            // Azure takes attributes at the end of an upload, where the crate has none.
            let id = match self.service {
                CloudService::Azure => self.store.begins.create_multipart(path).await?,
                CloudService::S3 | CloudService::Gcs => {
                    self.store
                        .begins
                        .create_multipart_opts(path, options)
                        .await?
                }
            };
            Ok(id)
        };
        Ok(self.retried("begin", 0, begin).await?.0)
    }

    /// Stores one part, from 0.
    pub(super) async fn put_part(
        &self,
        path: &Path,
        id: &String,
        number: usize,
        payload: PutPayload,
    ) -> Result<PartId, Failed> {
        let len = payload.content_length() as u64;
        let put = || async {
            Ok(self
                .store
                .parts
                .put_part(path, id, number, payload.clone())
                .await?)
        };
        Ok(self.retried("put part", len, put).await?.0)
    }

    /// Makes an object of its parts. Where the answer was lost the upload is gone, and the mark tells whether the object is ours.
    pub(super) async fn complete(
        &self,
        path: &Path,
        id: &String,
        parts: Vec<PartId>,
        bytes: u64,
        mark: &str,
    ) -> Result<(), Failed> {
        let complete = || async {
            Ok(self
                .store
                .parts
                .complete_multipart(path, id, parts.clone())
                .await?)
        };
        let failed = match self.retried("complete", 0, complete).await {
            Ok(_) => return Ok(()),
            Err(failed) => failed,
        };
        if !failed.was_ambiguous || failed.answer.status != Some(404) {
            return Err(failed);
        }
        match self.head(path).await? {
            Some((meta, attributes)) if meta.size == bytes && has_mark(&attributes, mark) => Ok(()),
            _ => Err(failed),
        }
    }

    /// Gives an upload up. One that is gone is not an error.
    pub(super) async fn abort(&self, path: &Path, id: &String) -> Result<(), Failed> {
        let abort = || async { Ok(self.store.parts.abort_multipart(path, id).await?) };
        match self.retried("abort", 0, abort).await {
            Err(failed) if failed.answer.status != Some(404) => Err(failed),
            _ => Ok(()),
        }
    }

    /// Returns one page of the uploads below a prefix that were not finished.
    pub(super) async fn unfinished(
        &self,
        prefix: &str,
        after: &super::unfinished::Marker,
    ) -> Result<Option<Vec<u8>>, Failed> {
        let list = || super::unfinished::page(&self.store.unfinished, prefix, after);
        Ok(self.retried("list uploads", 1 << 20, list).await?.0)
    }
}

impl Failed {
    fn of(answer: Answer) -> Self {
        Self {
            answer: Box::new(answer),
            was_ambiguous: false,
            ends_early: false,
            wrong: None,
        }
    }

    fn copy(&self) -> Self {
        Self {
            answer: self.answer.clone(),
            ..*self
        }
    }
}

fn has_mark(attributes: &Attributes, mark: &str) -> bool {
    attributes
        .get(&Attribute::Metadata(MARK.into()))
        .is_some_and(|value| value.as_ref() == mark)
}

/// Notes in the answer whether its body was cut. The transport saw only its begin.
fn look_into(error: &object_store::Error, answer: &mut Answer) {
    if answer.broken.is_some() || answer.unusable.is_some() {
        return;
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(http) = error.downcast_ref::<HttpError>() {
            answer.broken = Some(words_of(http));
            return;
        }
        cause = error.source();
    }
    // Credentials that are not there are no answer of the store.
    if answer.status.is_none() {
        answer.message = error.to_string();
    }
}

/// Returns the store's refusal to delete one object of a batch, from the words of the crate; `None` if it may succeed later.
fn refusal_of_delete(error: &object_store::Error) -> Option<Answer> {
    let text = error.to_string();
    let code = text.split_once("(code: ")?.1.split(')').next()?.to_owned();
    let message = text.split_once(": ").map_or("", |(_, message)| message);
    let message = message
        .split(" (code: ")
        .next()
        .unwrap_or_default()
        .to_owned();
    let answer = Answer {
        status: Some(403),
        code,
        message,
        ..Answer::default()
    };
    let is_passing = matches!(
        answer.code.as_str(),
        "InternalError" | "SlowDown" | "ServiceUnavailable"
    );
    (!is_passing).then_some(answer)
}
