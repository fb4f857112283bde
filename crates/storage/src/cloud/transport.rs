//! One request and its answer: counted, charged to the limits of the rate, and noted for whoever decides what happens next.
//!
//! Content of objects passes as it comes. All other answers are read whole here, up to [`MAX_ANSWER_BYTES`], and cleaned
//! ([`pages`]): the crate trusts them more than they deserve.

use super::{answer::Answer, pages, settings::CloudSettings};
use async_trait::async_trait;
use fullbore_platform::queue::{Locked, RateLimit};
use futures_util::StreamExt;
use http::{
    HeaderValue, Method,
    header::{ACCEPT_ENCODING, CONTENT_ENCODING},
};
use object_store::{
    ClientOptions,
    client::{
        HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
        HttpResponseBody, HttpService, ReqwestConnector,
    },
};
use std::{
    error::Error as _,
    fmt, io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

tokio::task_local! {
    /// The last answer of the attempt that this task makes.
    pub(super) static LAST_ANSWER: Arc<Mutex<Answer>>;
}

/// Bytes of an answer that is not the content of an object: a page of 5,000 keys of Azure may have 15 MiB.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// Bytes of an error that are read. The words of a store are at its begin.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Bytes of requests and answers that wait neither for a limit of the user nor for one of the connections.
pub(super) const SMALL_BYTES: u64 = 64 << 10;

/// What was asked of an object store so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CloudCounts {
    /// Requests that were sent, those for credentials too.
    pub requests: u64,
    /// Bytes of content that were sent.
    pub sent_bytes: u64,
    /// Bytes of content that were received.
    pub received_bytes: u64,
    /// Requests that were sent again.
    pub retries: u64,
    /// Answers that said that the store is asked too often.
    pub throttled: u64,
    /// Time that threads waited for `--limit-upload` and `--limit-download`.
    pub limited: Duration,
    /// Time that threads waited before they tried again.
    pub paused: Duration,
    /// Times that the store refused to list unfinished uploads.
    pub unlisted_uploads: u64,
}

impl CloudCounts {
    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, more: &Self) -> Self {
        Self {
            requests: self.requests + more.requests,
            sent_bytes: self.sent_bytes + more.sent_bytes,
            received_bytes: self.received_bytes + more.received_bytes,
            retries: self.retries + more.retries,
            throttled: self.throttled + more.throttled,
            limited: self.limited + more.limited,
            paused: self.paused + more.paused,
            unlisted_uploads: self.unlisted_uploads + more.unlisted_uploads,
        }
    }
}

/// Counts requests, and holds them to the limits of the user.
#[derive(Debug, Default)]
pub(super) struct CloudMeter {
    pub(super) requests: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) throttled: AtomicU64,
    limited_micros: AtomicU64,
    pub(super) paused_micros: AtomicU64,
    pub(super) unlisted_uploads: AtomicU64,
    upload_limit: Option<RateLimit>,
    download_limit: Option<RateLimit>,
}

impl CloudMeter {
    pub(super) fn new(settings: &CloudSettings) -> Self {
        Self {
            upload_limit: settings.upload_limit.map(RateLimit::of),
            download_limit: settings.download_limit.map(RateLimit::of),
            ..Self::default()
        }
    }

    pub(super) fn counts(&self) -> CloudCounts {
        CloudCounts {
            requests: self.requests.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
            retries: self.retries.load(Relaxed),
            throttled: self.throttled.load(Relaxed),
            limited: Duration::from_micros(self.limited_micros.load(Relaxed)),
            paused: Duration::from_micros(self.paused_micros.load(Relaxed)),
            unlisted_uploads: self.unlisted_uploads.load(Relaxed),
        }
    }

    /// Waits until bytes may be sent. Callers wait before a request and not within one: the time for its answer goes on meanwhile.
    pub(super) async fn may_send(&self, bytes: u64) {
        self.wait_for(self.upload_limit.as_ref(), bytes).await;
    }

    /// Waits until bytes may be received, for a caller that waits before its request, as [`CloudMeter::may_send`].
    pub(super) async fn may_receive(&self, bytes: u64) {
        self.wait_for(self.download_limit.as_ref(), bytes).await;
    }

    /// Waits for the bytes of an answer whose length was not known before it came.
    pub(super) async fn received(&self, bytes: u64) {
        self.wait_for(self.download_limit.as_ref(), bytes).await;
    }

    /// Waits for the limit. Few bytes pass at once: a lease is lost if its renewal waits behind the parts of an upload.
    async fn wait_for(&self, limit: Option<&RateLimit>, bytes: u64) {
        let pause = limit.map(|limit| limit.reserve(bytes)).unwrap_or_default();
        if !pause.is_zero() && bytes > SMALL_BYTES {
            self.limited_micros
                .fetch_add(pause.as_micros() as u64, Relaxed);
            tokio::time::sleep(pause).await;
        }
    }
}

/// Makes clients whose requests are metered.
#[derive(Debug, Clone)]
pub(super) struct MeteredConnector(pub(super) Arc<CloudMeter>);

impl HttpConnector for MeteredConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(MeteredService {
            client,
            meter: self.0.clone(),
        }))
    }
}

struct MeteredService {
    client: HttpClient,
    meter: Arc<CloudMeter>,
}

impl fmt::Debug for MeteredService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MeteredService")
    }
}

/// What becomes of the answer to a request.
enum Reading {
    /// The content of an object passes as it comes.
    Streamed,
    /// It is read whole.
    Whole,
    /// It is read whole, and keys that are not ours are left out.
    Listing,
    /// It is read whole, and compared with the request, which deletes many objects.
    Deletion(Vec<u8>),
}

impl Reading {
    fn of(request: &HttpRequest, is_of_host: bool) -> Self {
        let query = request.uri().query().unwrap_or_default();
        let has = |name: &str| query.split('&').any(|pair| pair.starts_with(name));
        match *request.method() {
            Method::GET if has("list-type=") || has("comp=list") && !has("comp=listb") => {
                Self::Listing
            }
            Method::GET if !has("uploads") && !is_of_host => Self::Streamed,
            Method::POST if has("delete") => {
                let body = request.body().as_bytes();
                Self::Deletion(body.map(|bytes| bytes.to_vec()).unwrap_or_default())
            }
            _ => Self::Whole,
        }
    }
}

#[async_trait]
impl HttpService for MeteredService {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let meter = &self.meter;
        let host = request.uri().host().unwrap_or_default();
        let is_of_host = host.starts_with("169.254.") || host.starts_with("metadata.google");
        let is_head = request.method() == Method::HEAD;
        let reading = Reading::of(&request, is_of_host);
        // Digests and positions are those of the stored bytes, so that nothing on the way may pack them.
        let identity = HeaderValue::from_static("identity");
        request.headers_mut().insert(ACCEPT_ENCODING, identity);
        let bytes = request.body().content_length() as u64;
        meter.requests.fetch_add(1, Relaxed);
        meter.sent_bytes.fetch_add(bytes, Relaxed);
        let response = match self.client.execute(request).await {
            Ok(response) => response,
            Err(error) => {
                note(Answer {
                    was_refused: error.kind() == HttpErrorKind::Connect,
                    is_of_host,
                    ..Answer::broken(words_of(&error))
                });
                return Err(error);
            }
        };
        let mut answer = answer_of(&response);
        answer.is_of_host = is_of_host && !response.status().is_success();
        if response.status().is_success() {
            note(answer);
            if is_head {
                return Ok(response);
            }
            if let Some(coding) = coding_of(&response) {
                return Err(unusable(format!(
                    "a proxy has changed the answer of the store: its content is packed with {coding}"
                )));
            }
            return self.read(response, reading).await;
        }
        let (parts, body) = response.into_parts();
        let body = begin_of(body, MAX_ERROR_BYTES).await;
        answer.read_body(&body);
        if answer.is_throttled() {
            meter.throttled.fetch_add(1, Relaxed);
        }
        note(answer);
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

impl MeteredService {
    /// Reads an answer as far as it is read here.
    async fn read(
        &self,
        response: HttpResponse,
        reading: Reading,
    ) -> Result<HttpResponse, HttpError> {
        if matches!(reading, Reading::Streamed) {
            self.count(body_bytes(&response));
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        let body = whole(body).await?;
        self.count(body.len() as u64);
        let body = match reading {
            Reading::Listing => pages::without_foreign_keys(body),
            Reading::Deletion(asked) => pages::deletion_of(&asked, body).map_err(unusable)?,
            Reading::Streamed | Reading::Whole => body,
        };
        Ok(HttpResponse::from_parts(parts, body.into()))
    }
}

impl MeteredService {
    fn count(&self, bytes: u64) {
        self.meter.received_bytes.fetch_add(bytes, Relaxed);
        let _ = LAST_ANSWER.try_with(|last| last.locked().bytes += bytes); // as in `note`
    }
}

/// Reads all bytes of an answer.
async fn whole(body: HttpResponseBody) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::new();
    let mut chunks = body.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        if bytes.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(unusable(format!(
                "the answer of the store has more than {} MiB",
                MAX_ANSWER_BYTES >> 20
            )));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// Reads the first bytes of an error, or as many as came before it broke.
async fn begin_of(body: HttpResponseBody, max_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chunks = body.bytes_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        let room = max_bytes - bytes.len();
        bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() >= room {
            break;
        }
    }
    bytes
}

/// Returns how the content of an answer is packed, if it is.
fn coding_of(response: &HttpResponse) -> Option<String> {
    let coding = response.headers().get(CONTENT_ENCODING)?;
    let text = String::from_utf8_lossy(coding.as_bytes()).to_lowercase();
    // A store may send back how an object was uploaded in pieces.
    let is_plain = matches!(text.trim(), "" | "identity" | "aws-chunked");
    let shown = text.chars().filter(|c| !c.is_control()).take(40);
    (!is_plain).then(|| shown.collect())
}

/// Returns the error of an answer that came whole and cannot be used, and that would not be another one the next time.
fn unusable(why: String) -> HttpError {
    note(Answer {
        unusable: Some(why.clone()),
        ..Answer::default()
    });
    HttpError::new(HttpErrorKind::Decode, io::Error::other(why))
}

fn note(answer: Answer) {
    let _ = LAST_ANSWER.try_with(|last| *last.locked() = answer); // outside of an attempt there is no caller to tell
}

fn answer_of(response: &HttpResponse) -> Answer {
    let header = |name: &str| {
        let value = response.headers().get(name)?;
        value.to_str().ok()
    };
    let seconds = header("retry-after").and_then(|text| text.trim().parse().ok());
    Answer {
        status: Some(response.status().as_u16()),
        code: header("x-ms-error-code").unwrap_or_default().to_owned(),
        retry_after: seconds.map(Duration::from_secs),
        region: header("x-amz-bucket-region")
            .filter(|_| response.status().is_redirection())
            .map(str::to_owned),
        ..Answer::default()
    }
}

/// Returns the bytes that an answer has by its own account.
fn body_bytes(response: &HttpResponse) -> u64 {
    let length = response.headers().get("content-length");
    let length = length.and_then(|value| value.to_str().ok());
    length
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// Returns why there was no answer: the innermost cause, which has the system's words and no part of the request.
pub(super) fn words_of(error: &HttpError) -> String {
    let kind = match error.kind() {
        HttpErrorKind::Connect => "could not connect to the store",
        HttpErrorKind::Timeout => "the store did not answer in time",
        _ => "the connection to the store broke",
    };
    let mut cause = error.source();
    while let Some(next) = cause.and_then(|cause| cause.source()) {
        cause = Some(next);
    }
    match cause {
        Some(cause) => {
            let text = cause.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            // TLS takes the words of a server without it for a damaged message.
            let text = match text.contains("InvalidContentType") {
                true => "it does not speak TLS, so its endpoint begins with http://",
                false => text,
            };
            format!("{kind}: {text}")
        }
        None => kind.to_owned(),
    }
}
