from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery

client = bigquery.Client(project="local", credentials=AnonymousCredentials())
like_ticket_1 = """
SELECT t.id, t.subject, 1 - COSINE_DISTANCE(v.vector, asked.vector) AS similarity
FROM `support.ticket_vectors` AS v
JOIN `support.ticket_vectors` AS asked ON asked.id = 1 AND asked.day = v.day
JOIN `support.tickets` AS t ON t.id = v.id AND t.day = v.day
WHERE v.day = '2026-11-20' AND v.id != 1
ORDER BY similarity DESC LIMIT 3
"""
for row in client.query(like_ticket_1):
    print(f"{row.similarity:.3f}  {row.id}  {row.subject}")
dead = "SELECT key, reason, message FROM `nightshift.dead_letters` WHERE job = 'ticket-vectors'"
for row in client.query(dead):
    print(row.key, row.reason, row.message)
