//! The server: takes connections, and answers the request of each.

use super::{
    guard::{Entry, Guard},
    places::{Place, PlaceKind, Places},
    request::{Method, Refused, Request},
    response::Response,
    timed::TimedStream,
};
use fullbore_platform::queue::start;
use rustls::ServerConfig;
use std::{
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

/// Pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Makes the answers to requests of a session.
pub trait Answers: Send + Sync {
    /// Returns whether a page makes this process search or start a program.
    fn is_question(&self, page: &str) -> bool;

    /// Answers a request for a page: its path below the base.
    fn answer(&self, page: &str, request: &Request) -> Response;

    /// Answers a request that has no session, or cannot be answered.
    fn refusal(&self, refused: Refused) -> Response;

    /// The page of entry.
    fn entry(&self, entry: &Entry, refused: Option<Refused>) -> Response;

    /// A file of this program, which has nothing of a repository: style and script.
    fn asset(&self, name: &str) -> Option<Response>;

    /// Is told that a token was used, so that the next one can be printed.
    fn entered(&self, guard: &Guard);
}

/// The settings of TLS for each new connection, which may change.
pub type TlsSettings = Box<dyn Fn() -> Arc<ServerConfig> + Send + Sync>;

/// A server.
pub struct Server {
    pub guard: Guard,
    pub tls: Option<TlsSettings>,
    pub answers: Box<dyn Answers>,
}

impl Server {
    /// Serves everyone who comes, without end.
    pub fn serve(self, listener: &TcpListener) -> ! {
        let places = Arc::<Places>::default();
        let server = Arc::new(self);
        loop {
            match listener.accept() {
                Ok((socket, _)) => {
                    if let Some(place) = places.admit(&socket) {
                        let server = server.clone();
                        // Without a thread, the connection ends.
                        let _ = start(move || server.serve_one(socket, &place));
                    }
                }
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    fn serve_one(&self, socket: TcpStream, place: &Place) {
        let tls = self.tls.as_ref().map(|settings| settings());
        let peer = socket.peer_addr().ok().map(|address| address.ip());
        let Ok(mut stream) = TimedStream::new(socket, tls) else {
            return;
        };
        let (response, is_head) = match Request::read(&mut stream) {
            Ok(mut request) => {
                request.peer = peer;
                (
                    self.respond(&request, place),
                    request.method == Method::Head,
                )
            }
            Err(Some(refused)) => (self.answers.refusal(refused), false),
            Err(None) => return,
        };
        let sent = response.send(&mut stream, is_head);
        stream.finish(sent.is_ok());
    }

    fn respond(&self, request: &Request, place: &Place) -> Response {
        if let Err(refused) = self.guard.check_site(request) {
            return self.answers.refusal(refused);
        }
        let base = self.guard.base();
        let Some(page) = request.path.strip_prefix(base) else {
            return self.answers.refusal(NOT_FOUND);
        };
        if let Some(asset) = self.answers.asset(page) {
            return asset;
        }
        if page == "enter" && !matches!(self.guard.entry(), Entry::Certificate) {
            return self.enter(request);
        }
        if !self.guard.is_known(request) {
            return match page.starts_with("api/") {
                true => self.answers.refusal(NO_SESSION),
                false => self.answers.entry(self.guard.entry(), Some(NO_SESSION)),
            };
        }
        place.is_known();
        if page == "leave" && request.method == Method::Post {
            self.guard.leave(request);
            return Response::see(format!("{base}enter"));
        }
        self.answer(page, request, place)
    }

    fn answer(&self, page: &str, request: &Request, place: &Place) -> Response {
        let is_question = self.answers.is_question(page);
        if is_question && !place.begin(PlaceKind::Question) {
            return self.answers.refusal(BUSY);
        }
        let response = self.answers.answer(page, request);
        if response.is_made() && !place.begin(PlaceKind::Download) {
            return self.answers.refusal(BUSY);
        }
        response
    }

    fn enter(&self, request: &Request) -> Response {
        if request.method != Method::Post {
            return self.answers.entry(self.guard.entry(), None);
        }
        match self.guard.enter(request) {
            Ok(cookie) => {
                self.answers.entered(&self.guard);
                let mut response = Response::see(self.guard.base().to_owned());
                response.headers.push(("Set-Cookie", cookie));
                response
            }
            Err(refused) => self.answers.entry(self.guard.entry(), Some(refused)),
        }
    }
}

const NOT_FOUND: Refused = Refused(404, "there is no such page");
const NO_SESSION: Refused = Refused(401, "there is no session");
const BUSY: Refused = Refused(503, "too much is done at once; try again in a moment");
