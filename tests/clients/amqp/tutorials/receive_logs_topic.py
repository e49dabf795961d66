"""Topics: listens for some patterns."""

import sys

import pika


def callback(ch, method, properties, body):
    print(f" [x] {method.routing_key}:{body.decode()}")


connection = pika.BlockingConnection(pika.ConnectionParameters(host="localhost"))
channel = connection.channel()
channel.exchange_declare(exchange="topic_logs", exchange_type="topic")
result = channel.queue_declare(queue="", exclusive=True)
queue_name = result.method.queue
for binding_key in sys.argv[1:]:
    channel.queue_bind(exchange="topic_logs", queue=queue_name, routing_key=binding_key)
channel.basic_consume(queue=queue_name, on_message_callback=callback, auto_ack=True)
print(" [*] Waiting for logs. To exit press CTRL+C")
channel.start_consuming()
