//! A client: it asks for anything at any moment, asks twice, goes away in the middle, and remembers
//! what it was promised.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use connectrpc::ConnectError;
use futures::future::{Either, join, select};
use overwinter_api::v1;
use overwinter_gateway::ports::Ids;
use overwinter_lifecycle::ids::SandboxId;
use overwinter_lifecycle::{Phase, Reason};

use super::doors::{Ask, Doors, Target, Verb, reason};
use super::invariant::Invariant;
use super::life::SeededIds;
use super::stage::Stage;

/// A verb that was asked for, to be asked again under the same key.
pub(crate) type Asked = Verb;

pub(crate) const TWICE: &str = "Client asks twice";
pub(crate) const AGAIN: &str = "Client asks again";
pub(crate) const LEAVES: &str = "Client goes away";

/// A client that has no patience.
const SHORT: Duration = Duration::from_secs(2);
/// One that has.
const LONG: Duration = Duration::from_secs(150);

/// What happens in the middle of something begins so soon after it.
const AMIDST: Duration = Duration::from_millis(60);

/// What a slow disk takes for an answer, and more.
const AT_ONCE: Duration = Duration::from_secs(5);

/// How long a key is remembered, less an hour.
const KEY_LIFE: Duration = Duration::from_secs(23 * 3_600);

pub(crate) struct Client {
    pub stage: Rc<Stage>,
    pub doors: Doors,
    pub ids: SeededIds,
    pub number: usize,
}

impl Client {
    /// Acts until nothing is left to do.
    pub(crate) async fn run(self) {
        loop {
            self.stage.a_while(self.stage.profile.think).await;
            let left = self.stage.steps_left.get();
            if left == 0 {
                return;
            }
            self.stage.steps_left.set(left - 1);
            self.step().await;
        }
    }

    async fn step(&self) {
        let stage = &self.stage;
        let name = format!("s{}", stage.roll(stage.profile.slots as u64));
        let patience = if stage.chance(stage.profile.habits.leave.into()) {
            SHORT
        } else {
            LONG
        };
        let leaves = stage.a_while(patience);
        let act = self.act(name.clone());
        match select(pin!(act), leaves).await {
            Either::Left(_) => {}
            Either::Right(_) => {
                stage
                    .trace
                    .note(format_args!("client {} went away", self.number));
                let id = stage.model.borrow().told.names.get(&name).copied();
                stage.met(LEAVES, id);
            }
        }
    }

    async fn act(&self, name: String) {
        let stage = &self.stage;
        let id = stage.model.borrow().told.names.get(&name).copied();
        let Some(id) = id else {
            return self.ask(Verb::Create(name)).await;
        };
        if stage.chance(stage.profile.habits.again.into()) {
            return self.ask_again().await;
        }
        let target = if stage.chance(500) {
            Target::Name(name.clone())
        } else {
            Target::Id(id)
        };
        match stage.roll(100) {
            0..=5 => {
                self.ask(Verb::Suspend(target, v1::Depth::DEPTH_FREEZE))
                    .await
            }
            6..=11 => {
                self.ask(Verb::Suspend(target, v1::Depth::DEPTH_CHECKPOINT))
                    .await
            }
            12..=15 => self.ask(Verb::Suspend(target, v1::Depth::DEPTH_STOP)).await,
            16..=18 => {
                self.ask(Verb::Suspend(target, v1::Depth::DEPTH_UNSPECIFIED))
                    .await
            }
            19..=34 => {
                let fallback = stage.chance(500);
                let wake = self.ask(Verb::Resume(target, fallback));
                join(wake, self.lost_amidst(id, fallback)).await;
            }
            35..=38 => self.ask(Verb::Start(target)).await,
            39..=41 => self.ask(Verb::Delete(target)).await,
            42..=44 => self.ask(Verb::Create(name)).await,
            45..=65 => self.write(id).await,
            66..=69 => {
                join(self.idle(id), self.used_amidst(id)).await;
            }
            70..=79 => self.read(id).await,
            80..=89 => self.run_process(id).await,
            90..=93 => self.start_process(id).await,
            94..=97 => self.get(&name).await,
            _ => {
                let listed = self.doors.list().await;
                self.note("list", listed.map(|many| many.to_string()));
            }
        }
    }

    /// What was to be woken may be killed just then.
    async fn lost_amidst(&self, id: SandboxId, fallback: bool) {
        let stage = &self.stage;
        if fallback && stage.profile.mishaps.kill > 0 && stage.chance(300) {
            stage.a_while(AMIDST).await;
            let killed = stage.world.kill(id);
            let trace = &stage.trace;
            trace.note(format_args!("mishap kill {id} amidst a resume: {killed}"));
        }
    }

    /// What idleness puts to sleep may be used just then.
    async fn used_amidst(&self, id: SandboxId) {
        if self.stage.chance(400) {
            self.stage.a_while(AMIDST).await;
            self.read(id).await;
        }
    }

    pub(super) fn note(&self, what: &str, answer: Result<String, ConnectError>) {
        let trace = &self.stage.trace;
        match answer {
            Ok(answer) => trace.note(format_args!("client {} {what}: {answer}", self.number)),
            Err(error) => trace.note(format_args!(
                "client {} {what}: {:?} {}",
                self.number,
                error.code,
                error.message.as_deref().unwrap_or_default()
            )),
        }
    }

    async fn ask(&self, verb: Verb) {
        let key = format!("key-{}", self.ids.next());
        let stage = &self.stage;
        let last = (verb.clone(), key.clone());
        stage.model.borrow_mut().last.insert(self.number, last);
        if stage.chance(stage.profile.habits.twice.into()) {
            stage.met(TWICE, self.meant(&verb));
            join(self.ask_under(&verb, &key), self.ask_under(&verb, &key)).await;
        } else {
            self.ask_under(&verb, &key).await;
        }
    }

    /// Whom a verb is about, if that is there.
    fn meant(&self, verb: &Verb) -> Option<SandboxId> {
        let names = &self.stage.model.borrow().told.names;
        match verb {
            Verb::Create(name)
            | Verb::Suspend(Target::Name(name), _)
            | Verb::Resume(Target::Name(name), _)
            | Verb::Start(Target::Name(name))
            | Verb::Delete(Target::Name(name)) => names.get(name).copied(),
            Verb::Suspend(Target::Id(id), _)
            | Verb::Resume(Target::Id(id), _)
            | Verb::Start(Target::Id(id))
            | Verb::Delete(Target::Id(id)) => Some(*id),
        }
    }

    async fn ask_again(&self) {
        let last = self.stage.model.borrow().last.get(&self.number).cloned();
        let Some((verb, key)) = last else { return };
        self.stage.met(AGAIN, self.meant(&verb));
        match verb.otherwise() {
            Some(other) if self.stage.chance(300) => self.ask_otherwise(other, &key).await,
            Some(_) | None => self.ask_under(&verb, &key).await,
        }
    }

    /// Something else under a key that was used.
    async fn ask_otherwise(&self, verb: Verb, key: &str) {
        let known = self.stage.model.borrow().keys.get(key).copied();
        let Some(known) = known.filter(|_| self.key_lives()) else {
            return;
        };
        let answer = self.doors.verb(&verb, &self.with(key)).await;
        self.stage
            .expect(Invariant::OneKeyOneOperation, answer.is_err(), || {
                format!("{key}, of {known}: {verb:?} was let in as well")
            });
        self.note("asked otherwise", answer.map(|_| key.to_owned()));
    }

    /// A clock that was set forward ends the life of a key.
    fn key_lives(&self) -> bool {
        let jumped = self.stage.model.borrow().jumped;
        jumped + self.stage.time.now() < KEY_LIFE
    }

    fn with(&self, key: &str) -> Ask {
        Ask {
            requester: format!("client-{}", self.number),
            key: key.to_owned(),
            wait: Duration::from_secs(self.stage.roll(4) * 20),
        }
    }

    async fn ask_under(&self, verb: &Verb, key: &str) {
        let stage = &self.stage;
        let (ask, since) = (self.with(key), stage.time.now());
        stage
            .trace
            .note(format_args!("client {} asks {verb:?}", self.number));
        let answer = self.doors.verb(verb, &ask).await;
        match &answer {
            Ok(answer) => {
                self.accepted(verb, key, answer);
                self.told(answer, since);
            }
            Err(error) => self.had_no_room(error, since),
        }
        let answer = answer.map(|answer| {
            let operation = answer.operation.as_option();
            let outcome = operation.and_then(|operation| operation.outcome.as_option());
            format!("{:?} {outcome:?}", answer.disposition)
        });
        self.note("was answered", answer);
    }

    fn accepted(&self, verb: &Verb, key: &str, answer: &v1::OperationResponse) {
        let stage = &self.stage;
        let Some(operation) = answer.operation.as_option() else {
            return;
        };
        let (Ok(id), Ok(sandbox)) = (operation.id.parse(), operation.sandbox_id.parse()) else {
            return stage.violate(
                Invariant::NoIntentIsLost,
                format!("an operation without an id: {operation:?}"),
            );
        };
        stage.expect(Invariant::JoinedIsEqual, verb.is_in(operation), || {
            format!("{verb:?} was answered with {operation:?}")
        });
        let mut model = stage.model.borrow_mut();
        model.accepted.insert(id, sandbox);
        let earlier = model.keys.insert(key.to_owned(), id);
        drop(model);
        if let Some(earlier) = earlier
            && self.key_lives()
        {
            stage.expect(Invariant::OneKeyOneOperation, earlier == id, || {
                format!("{key}: {earlier}, then {id}")
            });
        }
    }

    /// A refusal for want of room is given only where there was none at some time since it was asked.
    fn had_no_room(&self, error: &ConnectError, since: Duration) {
        // Of a profile's limits; a full disk has another reason.
        if reason(error).as_deref() != Some(Reason::CapacityExceeded.code()) {
            return;
        }
        let room = self.stage.model.borrow().told.room_since;
        let all_the_time = room.is_some_and(|room| room < since);
        self.stage
            .expect(Invariant::RoomIsGiven, !all_the_time, || {
                format!("since {room:?} there is room, and it is refused: {error}")
            });
    }

    /// Who waits is told of an end as soon as it is there.
    fn told(&self, answer: &v1::OperationResponse, since: Duration) {
        let stage = &self.stage;
        let id = answer
            .operation
            .as_option()
            .and_then(|it| it.id.parse().ok());
        let ended = id.and_then(|id| stage.model.borrow().told.ended.get(&id).copied());
        if let Some(ended) = ended {
            let late = stage.time.now().saturating_sub(ended.max(since));
            stage.expect(Invariant::WaitersAreTold, late < AT_ONCE, || {
                format!("{id:?} had ended {late:?} before its client was told")
            });
        }
    }

    async fn get(&self, name: &str) {
        let stage = &self.stage;
        let got = self.doors.get(&Target::Name(name.to_owned())).await;
        if let Ok(sandbox) = &got {
            let id: Option<SandboxId> = sandbox.id.parse().ok();
            let model = stage.model.borrow();
            let other = (model.told.names.get(name).copied()).filter(|holder| Some(*holder) != id);
            let kept = other.filter(|other| {
                let seen = model.told.seen.get(other);
                seen.is_some_and(|seen| seen.record.phase() != Phase::Tombstone)
            });
            drop(model);
            stage.expect(
                Invariant::IdStays,
                sandbox.name == name && kept.is_none(),
                || format!("{name} was {kept:?}, is answered as {}", sandbox.id),
            );
        }
        self.note("get", got.map(|sandbox| format!("{:?}", sandbox.phase)));
    }
}
