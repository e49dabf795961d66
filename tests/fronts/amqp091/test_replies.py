"""AMQP: direct reply-to, where a client is answered without a queue that it has declared, with pika."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pika
import pytest

from penstock import Message
from tests.fronts.amqp091.rig import Served, closes, quiet, served, until, waited
from tests.fronts.amqp091.test_cluster import play

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

REPLY_TO = "amq.rabbitmq.reply-to"


class Answers:
    """What comes back to a channel."""

    def __init__(self, channel: BlockingChannel) -> None:
        self.channel = channel
        self.found: list[tuple[Any, Any, bytes]] = []
        self.tag = channel.basic_consume(REPLY_TO, lambda _, *answer: self.found.append(answer), auto_ack=True)

    def ask(self, body: bytes, correlation_id: str = "c") -> None:
        properties = pika.BasicProperties(reply_to=REPLY_TO, correlation_id=correlation_id, headers={"h": 1})
        self.channel.basic_publish("", "questions", body, properties)

    def wait(self, count: int = 1) -> None:
        until(self.channel, lambda: len(self.found) >= count)


def worker_of(channel: BlockingChannel) -> None:
    """Answers everything in `questions`, in capitals."""
    channel.queue_declare("questions")

    def answered(found: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        back = pika.BasicProperties(correlation_id=properties.correlation_id)
        found.basic_publish("", properties.reply_to, body.upper(), back)
        found.basic_ack(method.delivery_tag)

    channel.basic_consume("questions", answered)


def both(worker: BlockingChannel, answers: Answers, count: int = 1) -> None:
    def answered() -> bool:
        worker.connection.process_data_events(0.01)
        return len(answers.found) >= count

    until(answers.channel, answered)


def asked(place: Served) -> tuple[Answers, Any]:
    """A client that has asked, and the question as its worker gets it."""
    client = place.channel(confirms=True)
    client.queue_declare("questions")
    answers = Answers(client)
    answers.ask(b"what?")
    _, properties, _ = client.basic_get("questions", auto_ack=True)
    return answers, properties


def test_an_answer_comes_to_the_channel_that_asked() -> None:
    with served() as place:
        worker = place.channel()
        worker_of(worker)
        clients = [Answers(place.channel()) for _ in range(3)]
        for number, client in enumerate(clients):
            client.ask(b"question %d" % number, f"c{number}")
            client.ask(b"and more %d" % number, f"d{number}")
        for number, client in enumerate(clients):
            both(worker, client, 2)
            assert [(found[1].correlation_id, found[2]) for found in client.found] == [
                (f"c{number}", b"QUESTION %d" % number),
                (f"d{number}", b"AND MORE %d" % number),
            ]
            assert client.found[0][0].consumer_tag == client.tag


def test_the_question_says_where_to_and_is_otherwise_as_it_was() -> None:
    with served() as place:
        answers, properties = asked(place)
        assert properties.reply_to.startswith(REPLY_TO + ".")
        assert (properties.correlation_id, properties.headers) == ("c", {"h": 1})
        other = place.channel()
        assert other.queue_declare(properties.reply_to, passive=True).method.consumer_count == 1
        assert other.queue_declare(REPLY_TO, passive=True).method.queue == REPLY_TO
        other.basic_publish("", properties.reply_to, b"by another")
        answers.wait()
        method, _, body = answers.found[0]
        assert (method.exchange, method.routing_key, body) == ("", properties.reply_to, b"by another")
        with closes(405):
            other.basic_consume(properties.reply_to, lambda *_: None)


def test_an_answer_by_another_protocol() -> None:
    with served() as place:
        answers, properties = asked(place)
        place.call(lambda broker: broker.publish(properties.reply_to, Message(b"from afar", correlation_id="c")))
        answers.wait()
        assert (answers.found[0][1].correlation_id, answers.found[0][2]) == ("c", b"from afar")


def test_within_a_transaction() -> None:
    with served() as place:
        client, worker = place.channel(), place.channel()
        worker_of(worker)
        answers = Answers(client)
        client.tx_select()
        answers.ask(b"what?")
        client.tx_commit()
        both(worker, answers)
        assert answers.found[0][2] == b"WHAT?"


@pytest.mark.parametrize("end", ["cancel", "channel", "connection"])
def test_who_is_gone_is_not_answered(end: str) -> None:
    with served() as place:
        answers, properties = asked(place)
        ways: dict[str, Callable[[], Any]] = {
            "cancel": lambda: answers.channel.basic_cancel(answers.tag),
            "channel": answers.channel.close,
            "connection": answers.channel.connection.close,
        }
        ways[end]()
        waited(lambda: not place.broker.knows_queue(properties.reply_to, "browse"))
        worker = place.channel(confirms=True)
        with pytest.raises(pika.exceptions.UnroutableError):
            worker.basic_publish("", properties.reply_to, b"too late", mandatory=True)
        with closes(404):
            worker.queue_declare(properties.reply_to, passive=True)


def test_what_is_not_honoured_is_refused() -> None:
    with served() as place:
        with closes(406, "auto_ack"):
            place.channel().basic_consume(REPLY_TO, lambda *_: None)
        with closes(406, "reply consumer already set"):
            channel = place.channel()
            Answers(channel)
            Answers(channel)
        with closes(406, "fast reply consumer does not exist"):
            channel = place.channel(confirms=True)
            channel.queue_declare("questions")
            channel.basic_publish("", "questions", b"?", pika.BasicProperties(reply_to=REPLY_TO))
        channel = place.channel(confirms=True)
        assert channel.queue_declare("questions", passive=True).method.message_count == 0


def test_a_channel_may_begin_again() -> None:
    with served() as place:
        answers, properties = asked(place)
        answers.channel.basic_cancel(answers.tag)
        again = Answers(answers.channel)
        again.ask(b"again")
        _, second, _ = answers.channel.basic_get("questions", auto_ack=True)
        assert second.reply_to != properties.reply_to
        place.channel().basic_publish("", second.reply_to, b"answer")
        again.wait()


def test_other_reply_queues_are_left_alone() -> None:
    with served() as place:
        client = place.channel(confirms=True)
        client.queue_declare("questions")
        Answers(client)
        named = pika.BasicProperties(reply_to="mine", headers={"text": REPLY_TO})
        client.basic_publish("", "questions", b"?", named)
        _, properties, _ = client.basic_get("questions", auto_ack=True)
        assert (properties.reply_to, properties.headers) == ("mine", {"text": REPLY_TO})


def test_among_several_nodes_each_answer_arrives() -> None:
    def story(channel: Callable[[int], BlockingChannel]) -> None:
        worker = channel(1)
        worker_of(worker)
        for number in range(6):  # some reply queues are the first's, some the second's
            client = channel(0)
            answers = Answers(client)
            answers.ask(b"question %d" % number)

            def answered(answers: Answers = answers) -> bool:
                worker.connection.process_data_events(0.01)
                return bool(answers.found)

            until(client, answered)
            assert answers.found[0][2] == b"QUESTION %d" % number
            quiet(client, 0.01)
            assert len(answers.found) == 1

    play(story)
