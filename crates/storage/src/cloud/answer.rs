//! The answer to one request, as far as it decides what happens next. Nothing here waits or asks.

use super::{address::CloudService, settings::RetryPolicy};
use fullbore_format::error::ErrorKind;
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

/// The last answer that a request got.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    /// The status, if there was an answer.
    pub(super) status: Option<u16>,
    /// The store's own word for an error, such as `SlowDown`.
    pub(super) code: String,
    /// The store's sentence about an error.
    pub(super) message: String,
    /// The pause that the store asked for.
    pub(super) retry_after: Option<Duration>,
    /// The region that the bucket is in, if it is another one.
    pub(super) region: Option<String>,
    /// Why there was no answer, or only a part of it.
    pub(super) broken: Option<String>,
    /// Bytes of its content.
    pub(super) bytes: u64,
    /// Why an answer that came whole is of no use. The next one would be of the same kind.
    pub(super) unusable: Option<String>,
    /// Was the connection refused? Then the request did not arrive.
    pub(super) was_refused: bool,
    /// Did it ask the host for its own credentials?
    pub(super) is_of_host: bool,
}

/// Statuses that answer a condition that does not hold.
const CONDITION_FAILED: [u16; 2] = [304, 412];

/// Words of the answer 404 that say that an object or an upload is absent; an answer without a body has none.
const ABSENT: [&str; 7] = [
    "",
    "NoSuchKey",
    "NoSuchVersion",
    "NoSuchUpload",
    "NotFound",
    "BlobNotFound",
    "ResourceNotFound",
];

impl Answer {
    /// Returns an answer that did not come, or not whole.
    pub(super) fn broken(why: impl Into<String>) -> Self {
        Self {
            broken: Some(why.into()),
            ..Self::default()
        }
    }

    /// Takes the store's words for an error from the body of an answer.
    pub(super) fn read_body(&mut self, body: &[u8]) {
        let text = String::from_utf8_lossy(&body[..body.len().min(64 << 10)]);
        if let Some(code) = xml_element("Code", &text) {
            self.code = code;
        }
        self.message = xml_element("Message", &text).unwrap_or_default();
    }

    fn is_success(&self) -> bool {
        self.status
            .is_some_and(|status| (200..300).contains(&status))
    }

    /// Returns whether the request may have been carried out though its answer is an error.
    pub(super) fn is_ambiguous(&self) -> bool {
        let is_lost = self.broken.is_some() && !self.was_refused;
        is_lost
            || self.unusable.is_some()
            || self.is_success()
            || self.status.is_some_and(|status| status >= 500)
    }

    /// Returns whether the store said that it is asked too often.
    pub(super) fn is_throttled(&self) -> bool {
        let is_slow = matches!(
            self.code.as_str(),
            "SlowDown" | "ServerBusy" | "TooManyRequests" | "RequestLimitExceeded"
        );
        is_slow || matches!(self.status, Some(429 | 503))
    }

    /// Returns whether the credentials were good before, and are not any more.
    pub(super) fn is_expired(&self) -> bool {
        matches!(
            self.code.as_str(),
            "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "RequestExpired"
        ) || self.status == Some(401)
    }

    /// Returns whether the condition of the request did not hold.
    pub(super) fn is_refusal(&self, service: CloudService) -> bool {
        match self.status {
            Some(status) if CONDITION_FAILED.contains(&status) => true,
            // The others say 409 when two are at work at the same time: nothing is known then.
            Some(409) => service == CloudService::Azure && self.code != "ServerBusy",
            _ => false,
        }
    }

    /// Returns whether the same request may succeed later.
    pub(super) fn may_pass(&self, service: CloudService) -> bool {
        if self.is_of_host || self.unusable.is_some() {
            return false;
        }
        if self.broken.is_some() || self.is_success() || self.is_throttled() || self.is_expired() {
            return true;
        }
        match self.status {
            Some(408 | 500 | 502 | 504) => true,
            Some(409) => !self.is_refusal(service),
            // Bytes that changed on their way there, and a body that came too slowly.
            Some(400) => matches!(
                self.code.as_str(),
                "BadDigest"
                    | "InvalidDigest"
                    | "XAmzContentSHA256Mismatch"
                    | "XAmzContentChecksumMismatch"
                    | "RequestTimeout"
                    | "IncompleteBody"
                    | "Md5Mismatch"
                    | "Crc64Mismatch"
            ),
            _ => false,
        }
    }

    /// Returns the kind of the error that this answer is.
    pub(super) fn kind(&self) -> ErrorKind {
        if self.is_of_host {
            return ErrorKind::Permission;
        }
        if self.unusable.is_some() {
            return ErrorKind::Unsupported;
        }
        if self.broken.is_some() {
            return ErrorKind::Unreachable;
        }
        match (self.code.as_str(), self.status) {
            ("NoSuchBucket" | "ContainerNotFound", _) => ErrorKind::Usage,
            ("InvalidObjectState" | "NotImplemented" | "BlobArchived", _)
            | (_, Some(405 | 501)) => ErrorKind::Unsupported,
            ("QuotaExceeded" | "XMinioStorageFull" | "EntityTooLarge", _) | (_, Some(507)) => {
                ErrorKind::Full
            }
            (
                "ExpiredToken"
                | "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "AccessDenied"
                | "XAdminUserNotFound",
                _,
            )
            | (_, Some(401 | 403)) => ErrorKind::Permission,
            // A word that is not about an object: whether the object is there is not known.
            (code, Some(404)) if !ABSENT.contains(&code) => ErrorKind::System,
            (_, Some(404)) => ErrorKind::NotFound,
            (_, Some(408 | 409 | 429 | 500..)) => ErrorKind::Unreachable,
            (_, Some(200..=299)) => ErrorKind::Corrupt,
            (_, Some(301 | 307 | 308)) => ErrorKind::Usage,
            _ => ErrorKind::System,
        }
    }

    /// Returns a sentence to act on, if there is one.
    pub(super) fn hint(&self) -> Option<String> {
        if self.is_of_host {
            return Some("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; for gs:// GOOGLE_APPLICATION_CREDENTIALS; for az:// \
                 AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY".to_owned());
        }
        if self
            .unusable
            .as_ref()
            .is_some_and(|why| why.contains("proxy"))
        {
            return Some(
                "have the proxy pass the store's answers as they are (Cache-Control: no-transform), or go past it (NO_PROXY)"
                    .to_owned(),
            );
        }
        if let Some(region) = &self.region {
            return Some(format!("add --storage region={region}"));
        }
        match (self.code.as_str(), self.status) {
            ("RequestTimeTooSkewed", _) => Some("correct the clock of this host".to_owned()),
            ("NoSuchBucket" | "ContainerNotFound", _) => {
                Some("make the bucket, or correct its name".to_owned())
            }
            ("InvalidObjectState" | "BlobArchived", _) => {
                Some("restore the object from the archive of the store first".to_owned())
            }
            (_, Some(401)) | ("ExpiredToken", _) => Some("renew the credentials".to_owned()),
            ("InvalidAccessKeyId" | "SignatureDoesNotMatch" | "XAdminUserNotFound", _) => {
                Some("correct the credentials of the store".to_owned())
            }
            (_, Some(403)) => {
                Some("give these credentials the right to do this to the bucket".to_owned())
            }
            _ if self.was_refused => {
                Some("is the store reachable? --storage endpoint=URL says where it is".to_owned())
            }
            _ if self.is_throttled() => {
                Some("use fewer --connections, or try again later".to_owned())
            }
            _ => None,
        }
    }

    /// Returns the answer in words, without any part of the request: that may hold credentials.
    pub(super) fn words(&self) -> String {
        if self.is_of_host {
            return "no credentials were found, and this host has none of its own".to_owned();
        }
        if let Some(why) = self.unusable.as_ref().or(self.broken.as_ref()) {
            return why.clone();
        }
        let Some(status) = self.status else {
            return "the request could not be made".to_owned();
        };
        if self.is_success() {
            return "the answer of the store is not what was asked for".to_owned();
        }
        let mut words = format!("the store answered {status}");
        for word in [&self.code, &self.message] {
            if !word.is_empty() {
                words.push_str(", ");
                words.push_str(word.trim_end_matches('.'));
            }
        }
        words
    }
}

fn xml_element(name: &str, text: &str) -> Option<String> {
    let after = text.split_once(&format!("<{name}>"))?.1;
    let word = after.split_once("</")?.0;
    let is_plain = |c: &char| !c.is_control();
    Some(word.chars().filter(is_plain).take(200).collect::<String>())
}

impl RetryPolicy {
    /// Returns the pause after a try, the first being 0: by chance between half and the whole of what the number of tries gives, so that
    /// many that failed together do not come back together. At least what the store asked for.
    pub(super) fn pause(&self, tries_before: u32, answer: &Answer) -> Duration {
        let whole = self
            .first_pause
            .saturating_mul(1 << tries_before.min(20))
            .min(self.longest_pause);
        let chance = RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64;
        let pause = whole.mul_f64(0.5 + chance / 2.0);
        pause
            .max(answer.retry_after.unwrap_or_default())
            .min(self.longest_pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CloudService::{Azure, S3};

    fn answer(status: u16, code: &str) -> Answer {
        Answer {
            status: Some(status),
            code: code.to_owned(),
            ..Answer::default()
        }
    }

    #[test]
    fn only_answers_that_may_change_are_asked_for_again() {
        for (status, code) in [
            (500, ""),
            (503, "SlowDown"),
            (429, ""),
            (400, "BadDigest"),
            (403, "ExpiredToken"),
            (200, ""),
        ] {
            assert!(answer(status, code).may_pass(S3), "{status} {code}");
        }
        for (status, code) in [
            (403, "AccessDenied"),
            (404, "NoSuchKey"),
            (412, ""),
            (400, "InvalidArgument"),
            (501, ""),
            (507, ""),
        ] {
            assert!(!answer(status, code).may_pass(S3), "{status} {code}");
        }
        assert!(Answer::broken("reset").may_pass(S3));
        assert!(answer(409, "ConditionalRequestConflict").may_pass(S3));
        assert!(!answer(409, "BlobAlreadyExists").may_pass(Azure));
        assert!(answer(409, "BlobAlreadyExists").is_refusal(Azure));
    }

    #[test]
    fn only_an_answer_about_the_object_says_that_it_is_absent() {
        for code in ["", "NoSuchKey", "BlobNotFound"] {
            assert_eq!(answer(404, code).kind(), ErrorKind::NotFound, "{code}");
        }
        for code in ["NoSuchBucket", "XAdminUserNotFound", "NoSuchTenant"] {
            assert_ne!(answer(404, code).kind(), ErrorKind::NotFound, "{code}");
        }
    }

    #[test]
    fn the_words_of_the_store_are_shown_and_its_echo_of_the_request_is_not() {
        let mut denied = answer(403, "");
        denied.read_body(
            b"<Error><Code>SignatureDoesNotMatch</Code><Message>They differ.</Message><StringToSign>AKIA</StringToSign></Error>",
        );
        assert_eq!(
            denied.words(),
            "the store answered 403, SignatureDoesNotMatch, They differ"
        );
        assert_eq!(denied.kind(), ErrorKind::Permission);
        denied.read_body(b"\xff<Code>");
        assert_eq!(denied.code, "SignatureDoesNotMatch");
    }

    #[test]
    fn pauses_grow_are_bounded_and_at_least_what_the_store_asks_for() {
        let policy = RetryPolicy::default();
        let pauses = [0, 1, 2, 30].map(|tries| policy.pause(tries, &answer(500, "")));
        assert!(pauses[0] <= policy.first_pause && pauses[0] >= policy.first_pause / 2);
        assert!(pauses[2] >= policy.first_pause * 2);
        assert!(pauses[3] <= policy.longest_pause);
        let asked = |seconds| Answer {
            retry_after: Some(Duration::from_secs(seconds)),
            ..answer(503, "")
        };
        assert!(policy.pause(0, &asked(7)) >= Duration::from_secs(7));
        assert_eq!(policy.pause(0, &asked(7000)), policy.longest_pause);
    }
}
