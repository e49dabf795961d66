"""Routing: listens for some severities."""

import sys

import pika


def callback(ch, method, properties, body):
    print(f" [x] {method.routing_key}:{body.decode()}")


connection = pika.BlockingConnection(pika.ConnectionParameters(host="localhost"))
channel = connection.channel()
channel.exchange_declare(exchange="direct_logs", exchange_type="direct")
result = channel.queue_declare(queue="", exclusive=True)
queue_name = result.method.queue
for severity in sys.argv[1:]:
    channel.queue_bind(exchange="direct_logs", queue=queue_name, routing_key=severity)
channel.basic_consume(queue=queue_name, on_message_callback=callback, auto_ack=True)
print(" [*] Waiting for logs. To exit press CTRL+C")
channel.start_consuming()
